"""Checks that a model of transformers must pass before Sluice serves it.

1. `model_class` looks at the configuration, before any weight is read.
2. `probe` calls the model once and looks at what each layer asks of its attention.
3. `check_agreement` compares logits: paged, and in pieces, they must equal those of transformers alone. Attention takes
   many forms, and a form that ours does not know may give numbers that are merely wrong. An error in positions, masks,
   biases or heads shows in the first tokens as another distribution; rounding does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec
from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.fallback.paged import LayerCall, TransformersLM

FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = (FULL, SLIDING)
"""Layer types that paged attention supports."""


def model_type(checkpoint: CheckpointConfig) -> str:
    """Return the name of the configuration in transformers.

    Raises:
        CheckpointError: transformers has none, or the checkpoint brings its own code.
    """
    fields = checkpoint.fields
    name = fields.text("model_type")
    if name in CONFIG_MAPPING:
        return name
    if "auto_map" in fields:
        raise CheckpointError(
            f"{fields.source}: {checkpoint.architecture} needs Python code from the checkpoint, which Sluice never runs"
        )
    raise CheckpointError(
        f"{fields.source}: architecture {checkpoint.architecture!r} is not supported: transformers {__version__} does"
        f" not know the model type {name!r} either"
    )


def model_class(checkpoint: CheckpointConfig, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class of transformers that computes the checkpoint.

    Raises:
        CheckpointError: the class is not a decoder-only language model, or its attention cannot be replaced.
    """
    name = checkpoint.architecture
    if config.is_encoder_decoder:
        raise _refused(name, "it has an encoder")
    if checkpoint.fields.section("quantization_config") is not None:
        raise _refused(name, "its weights are quantised (quantization_config)")
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if known is None or known.__name__ != name:
        other = "" if known is None else f"; that of its configuration is {known.__name__}"
        raise _refused(name, f"it is not a causal language model over text{other}")
    if known._is_stateful:
        raise _refused(name, "its layers keep a state between tokens other than keys and values")
    if not known._supports_attention_backend:
        raise _refused(name, "transformers does not allow another attention function for it")
    _check_layers(name, config)
    return known


def _check_layers(name: str, config: PreTrainedConfig) -> None:
    fields = config.to_dict()
    other = sorted({*(fields.get("layer_types") or ())} - {*LAYERS})
    if other:
        raise _refused(name, f"layers of the kind {', '.join(other)} are not supported, only {' and '.join(LAYERS)}")
    if fields.get("attention_chunk_size") is not None:
        raise _refused(name, "attention in chunks (attention_chunk_size) is not supported")


def _refused(name: str, why: str) -> CheckpointError:
    return CheckpointError(f"architecture {name!r} has no native implementation, and transformers cannot run it: {why}")


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A `paged.StepAttention` that records the calls and returns zeros."""

    calls: list[LayerCall]
    value_sizes: list[int]
    """Elements of each call's values, per head."""

    def attend(self, call: LayerCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls.append(call)
        self.value_sizes.append(v.shape[2])
        return q.new_zeros(*q.shape[:2], v.shape[2])


@torch.inference_mode()
def probe(model: PreTrainedModel, config: PreTrainedConfig, device: torch.device) -> list[AttentionSpec]:
    """Call the decoder with one token and return the attention of its layers, all of the same sizes.

    Args:
        model: its attention implementation is `paged.NAME`.

    Raises:
        CheckpointError: one pool of pages, the same for every layer, does not fit the layers.
    """
    recorder = _Recorder([], [])
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    model.get_decoder()(input_ids=token, position_ids=token, use_cache=False, sluice_step=recorder)
    order, specs = [call.layer for call in recorder.calls], [call.spec for call in recorder.calls]
    if not order or order != list(range(len(order))):
        raise _not_served(model, f"its layers call attention in the order {order}")
    shapes = {(spec.num_heads, spec.num_kv_heads, spec.head_dim) for spec in specs}
    if len(shapes) > 1:
        raise _not_served(model, f"its layers differ in (heads, KV heads, head size): {sorted(shapes)}")
    size = specs[0].head_dim
    if set(recorder.value_sizes) != {size}:
        raise _not_served(
            model,
            f"its keys have {size} elements a head and its values {', '.join(map(str, set(recorder.value_sizes)))}",
        )
    _check_windows(model, config, specs)
    return specs


def _check_windows(model: PreTrainedModel, config: PreTrainedConfig, specs: Sequence[AttentionSpec]) -> None:
    """Refuse a window that transformers applies through its mask only: our attention would not see it."""
    fields = config.to_dict()
    window, kinds = fields.get("sliding_window"), fields.get("layer_types")
    if kinds is None:
        kinds = [FULL if window is None else SLIDING] * len(specs)
    for layer, (spec, kind) in enumerate(zip(specs, kinds, strict=True)):
        wanted = window if kind == SLIDING else None
        if spec.window != wanted:
            raise _not_served(model, f"layer {layer} uses the window {spec.window}, its config says {wanted}")


def _not_served(model: PreTrainedModel, why: str) -> CheckpointError:
    return CheckpointError(f"{type(model).__name__} cannot run through transformers: {why}")


TOKENS = 9
PIECES = (5, 3, 1)
"""A first chunk, a chunk after a cached prefix, a decode."""
PAGE_SIZE = 4
MAX_DIFFERENCE = 0.1
"""Mean difference in standard deviations of the logits. Rounding to bfloat16 gives about 0.01."""


def sample_tokens(vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return [TOKENS] ids spread over a vocabulary."""
    return torch.arange(1, TOKENS + 1, device=device) * 7919 % vocab_size


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits [TOKENS, vocab_size] of transformers alone.

    Args:
        model: complete, its attention implementation is "eager".
    """
    return model(input_ids=tokens[None], use_cache=False).logits[0]


@torch.inference_mode()
def check_agreement(model: TransformersLM, tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare the logits of a model over paged KV with those of transformers.

    Args:
        expected: `plain_logits` of the same tokens.

    Raises:
        CheckpointError: they differ by more than `MAX_DIFFERENCE`.
    """
    spec, pages = model.spec, -(-TOKENS // PAGE_SIZE)
    shape = (pages, PAGE_SIZE, spec.num_kv_heads, spec.head_dim)
    pools = [
        [torch.zeros(shape, dtype=spec.dtype, device=tokens.device) for _ in range(2)] for _ in range(spec.num_layers)
    ]
    kv = [LayerKV(k, v) for k, v in pools]
    parts, start = [], 0
    for length in PIECES:
        batch = _batch(tokens, start, length, pages)
        parts.append(model.logits(model.forward(batch, kv, ReferenceAttention())))
        start += length
    ours = torch.cat(parts).float()
    difference = float((ours - expected.float()).abs().mean() / expected.float().std())
    if not difference <= MAX_DIFFERENCE:
        raise CheckpointError(
            f"{spec.architecture} cannot run through transformers: with paged attention its logits differ from"
            f" transformers' own by {difference:.2f} standard deviations"
        )


def _batch(tokens: torch.Tensor, start: int, length: int, pages: int) -> ForwardBatch:
    """Return a batch with the tokens of one request from `start` on, in pages 0, 1, ..."""
    device, end = tokens.device, start + length
    positions = torch.arange(start, end, device=device)
    return ForwardBatch(
        input_ids=tokens[start:end],
        positions=positions,
        kv_slots=positions,
        page_table=torch.arange(pages, dtype=torch.int32, device=device)[None],
        q_starts=torch.tensor([0, length], dtype=torch.int32, device=device),
        kv_lens=torch.tensor([end], dtype=torch.int32, device=device),
        logit_rows=torch.arange(length, device=device),
        q_lens=(length,),
        kv_lens_host=(end,),
        num_decodes=int(length == 1),
    )
