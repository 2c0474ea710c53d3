"""Reads the sizes of a model off the model itself, built from its config without memory for weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from sluice.models.base import CausalLM
from sluice.models.catalog.sizes import ModelSizes, StateBytes
from sluice.models.checkpoint import CheckpointConfig, CheckpointError, Fields, parse_config
from sluice.models.model_class import model_class
from sluice.models.registry import COMPOSITES, is_native

USUAL = "LlamaForCausalLM"
"""The architecture whose layers others are taken to have."""
SHAPES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "tie_word_embeddings", "quantization_config"),
)
"""Fields of such an architecture that say how large its matrices are, beside `head_dim`."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
FEW_EXPERTS = (16, 128)
"""Experts of a layer with which a model is built to be counted: all are equal, and thousands take seconds. Fewer than a
token chooses are refused."""


def read_sizes(path: Path) -> ModelSizes:
    """Return the sizes in the `config.json` of a folder, or in a file like it.

    Raises:
        CheckpointError: it cannot be read, or is of quantised weights, or of a mixture of experts that is not known,
            or lacks a size.
    """
    file = path / "config.json" if path.is_dir() else path
    return sizes_of(Fields.read(file), file.parent.resolve().name, file.parent)


def sizes_of(fields: Fields, name: str, folder: Path) -> ModelSizes:
    """Return the sizes in the fields of a `config.json`.

    Args:
        name: of the model.
        folder: as in `parse_config`.

    Raises:
        CheckpointError: as `read_sizes`.
    """
    checkpoint = parse_config(_known(fields), folder)
    if checkpoint.fields.get("quantization_config") is not None:
        raise CheckpointError(f"{fields.source} is of quantised weights, not of those of 16 bits")
    return _sizes_with_experts(checkpoint, name) or _sizes(_built(checkpoint), name)


def _built(checkpoint: CheckpointConfig) -> CausalLM:
    with torch.device("meta"):
        return model_class(checkpoint.architecture).from_checkpoint(checkpoint, torch.bfloat16)


def _sizes_with_experts(checkpoint: CheckpointConfig, name: str) -> ModelSizes | None:
    """Return the sizes of a model with many experts from one with few; None: there are not many, or each token is
    computed by many of them."""
    fields = checkpoint.fields
    counted = next((key for key in EXPERT_COUNTS if fields.get(key)), None)
    if counted is None:
        return None
    count = fields.integer(counted)
    for few in FEW_EXPERTS:
        if count <= few:
            return None
        try:
            model = _built(replace(checkpoint, fields=fields.replaced({counted: few}, "few experts")))
        except CheckpointError:
            continue
        experts = model.spec.experts
        if experts is None:
            return None
        # With their rows of the router.
        numbers = experts.layers * (count - few) * (experts.parameters + model.spec.hidden_size)
        sizes = _sizes(model, name)
        return replace(sizes, stored=sizes.stored + numbers, experts=replace(experts, count=count))
    return None


def _known(fields: Fields) -> Fields:
    """Return a config of a native architecture: of another one, or of none, with Llama's in its place."""
    names = fields.get("architectures")
    if isinstance(names, list) and any(is_native(name) or name in COMPOSITES for name in names):
        return fields
    named = next((name for name in fields if "expert" in name and fields.get(name)), None)
    if named is not None:
        raise CheckpointError(f"{fields.source} is of a mixture of experts ({named}) that is not known")
    return _as_usual(fields)


def _as_usual(fields: Fields) -> Fields:
    """Return the fields that say how large a model is whose layers are taken to be Llama's. What else it has may be
    what Llama's family refuses."""
    heads = fields.integer("num_attention_heads")
    shapes = {key: fields.get(key) for key in SHAPES}
    head_dim = fields.integer("head_dim", max(1, fields.integer("hidden_size") // heads))
    rope = fields.get("rope_scaling") or fields.get("rope_parameters")
    is_yarn = isinstance(rope, dict) and "yarn" in (rope.get("rope_type"), rope.get("type"))
    own = {"architectures": [USUAL], "head_dim": head_dim, "rope_scaling": rope if is_yarn else None}
    return Fields({**shapes, **own}, fields.source)


def _sizes(model: CausalLM, name: str) -> ModelSizes:
    """Return the sizes of a model on the meta device."""
    spec, table = model.spec, model.spec.vocab_size * model.spec.hidden_size
    tables = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Embedding))
    states = None
    if spec.state is not None:
        slot, record = (spec.num_states * each for each in (spec.state.slot_bytes(1), spec.state.record_bytes))
        states = StateBytes(spec.num_states, len(spec.kv_layers), slot, record)
    return ModelSizes(
        name=name,
        architecture=spec.architecture,
        layers=spec.num_layers,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_model_len=spec.max_model_len,
        stored=sum(weight.numel() for weight in model.parameters() if weight.dim() > 1),
        table=table,
        tied=model.tied,
        kv=sum(2 * layer.num_kv_heads * layer.head_dim for layer in spec.kv_layers),
        lookups=tables - table,
        experts=spec.experts,
        states=states,
    )
