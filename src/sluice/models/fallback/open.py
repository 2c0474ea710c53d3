"""Opens a checkpoint with transformers, checks that Sluice can serve it, and separates decoder and head."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._meta_registrations  # an engine's process leaves it out, and transformers builds models with it
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.fallback.checks import check_agreement, model_class, model_type, plain_logits, probe, sample_tokens
from sluice.models.fallback.paged import NAME, TransformersLM, register
from sluice.models.spec import ModelSpec

LOGGER = logging.getLogger("sluice.models")
GROWING_ROPES = ("longrope", "dynamic")
"""Rotary embeddings whose frequencies change when a text exceeds the original context: cached keys, and the other
requests of a step, would have to be rotated again."""


def open_model(
    folder: Path, checkpoint: CheckpointConfig, *, dtype: torch.dtype, device: torch.device, progress: bool
) -> TransformersLM:
    """Open a checkpoint as `load.load_fallback` describes."""
    config = _read_config(folder, checkpoint)
    kind = model_class(checkpoint, config)
    limit = _max_model_len(checkpoint, config)
    with _progress(progress):
        model = _load(kind, folder, config, dtype).to(device)
    try:
        served = _take_apart(model, checkpoint, config, dtype, limit)
    except CheckpointError:
        raise
    except Exception as error:  # an untested model may raise anything
        raise CheckpointError(
            f"{checkpoint.architecture} cannot run through transformers: {type(error).__name__}: {_one_line(error)}"
        ) from error
    LOGGER.warning(
        "%s runs through transformers, slower than a native implementation would; up to %d tokens a request",
        checkpoint.architecture,
        limit,
    )
    return served


def _take_apart(
    model: PreTrainedModel, checkpoint: CheckpointConfig, config: PreTrainedConfig, dtype: torch.dtype, limit: int
) -> TransformersLM:
    """Replace the attention of a complete model by ours, and check that it still computes the same."""
    device, vocab_size = next(model.parameters()).device, _vocab_size(model)
    tokens = sample_tokens(vocab_size, device)
    expected = plain_logits(model, tokens)
    register()
    model.set_attn_implementation(NAME)
    layers = probe(model, config, device)
    spec = ModelSpec(
        architecture=checkpoint.architecture,
        num_layers=len(layers),
        num_heads=layers[0].num_heads,
        num_kv_heads=layers[0].num_kv_heads,
        head_dim=layers[0].head_dim,
        hidden_size=config.hidden_size,
        vocab_size=vocab_size,
        max_model_len=limit,
        eos_token_ids=checkpoint.eos_token_ids,
        dtype=dtype,
        implementation="transformers",
    )
    served = TransformersLM(model, spec)
    check_agreement(served, tokens, expected)
    return served


def _read_config(folder: Path, checkpoint: CheckpointConfig) -> PreTrainedConfig:
    # The class itself and not AutoConfig: that one can be led to code in the checkpoint.
    kind = CONFIG_MAPPING[model_type(checkpoint)]
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each class raises its own errors
        raise CheckpointError(f"config.json: transformers refuses it: {_one_line(error)}") from error


def _load(kind: type[PreTrainedModel], folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """
    Raises:
        CheckpointError: a tensor is missing, unexpected or of the wrong shape, which transformers would fill or drop.
    """
    try:
        model, report = kind.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            # Grouped matrix products do not support float64.
            experts_implementation="eager" if dtype == torch.float64 else None,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # file, shape and conversion errors have no common class
        raise CheckpointError(f"transformers cannot load {folder}: {_one_line(error)}") from error
    for problem, words in (("missing_keys", "lacks the tensor"), ("unexpected_keys", "holds an unexpected tensor")):
        if report[problem]:
            raise CheckpointError(f"the checkpoint {words}: {', '.join(sorted(report[problem])[:3])}")
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def _max_model_len(checkpoint: CheckpointConfig, config: PreTrainedConfig) -> int:
    """Return the most tokens of a request.

    Raises:
        CheckpointError: the config does not give a limit.
    """
    name = "max_position_embeddings"
    fields = config.to_dict()
    limit = fields.get(config.attribute_map.get(name, name))
    if not isinstance(limit, int) or limit < 1:
        raise checkpoint.fields.error(name, "the model's longest context")
    ropes = fields.get("rope_parameters") or {}
    for rope in (ropes, *(value for value in ropes.values() if isinstance(value, dict))):
        first = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") in GROWING_ROPES and isinstance(first, int):
            limit = min(limit, first)
    return limit


def _vocab_size(model: PreTrainedModel) -> int:
    """Return the number of rows of the embedding.

    Raises:
        CheckpointError: the head has another number of rows, so a sampled id might have no embedding.
    """
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding.shape[0] != head.shape[0]:
        raise CheckpointError(f"the embedding has {embedding.shape[0]} rows and the head {head.shape[0]}")
    return int(embedding.shape[0])


@contextmanager
def _progress(wanted: bool) -> Iterator[None]:
    """Switch the progress bar of transformers on or off; it is a setting of the whole process."""
    was = transformers_logging.is_progress_bar_enabled()
    (transformers_logging.enable_progress_bar if wanted else transformers_logging.disable_progress_bar)()
    try:
        yield
    finally:
        (transformers_logging.enable_progress_bar if was else transformers_logging.disable_progress_bar)()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
