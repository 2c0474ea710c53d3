"""Paged attention for models of transformers.

transformers computes everything except attention. Its layers call an attention function by name. Ours, `NAME`, passes
each call to the step that the model was called with, so no state of a step is kept. The step stores keys and values in
pages and calls an attention backend, as a native layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils import ModelOutput

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.spec import AttentionSpec
from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.spec import ModelSpec

NAME = "sluice_paged"
IGNORED = frozenset({"position_ids", "position_embeddings", "cache_position", "use_cache", "return_dict"})
"""Arguments that layers pass to every attention function and that have no effect on ours."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """The arguments of one layer's attention, except queries, keys and values."""

    layer: int
    spec: AttentionSpec
    sinks: torch.Tensor | None
    """[heads], a score per head that takes part in the softmax but has no value (gpt-oss)."""


class StepAttention(Protocol):
    """Computes attention for the layers of one call of a model."""

    def attend(self, call: LayerCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute the attention of one layer.

        Args:
            q: [N, heads, head_dim].
            k, v: [N, kv_heads, head_dim].

        Returns:
            [N, heads, head_dim]
        """
        ...


@dataclass(frozen=True, slots=True)
class PagedStep:
    """A step over paged KV."""

    batch: ForwardBatch
    kv: Sequence[PagedKV]
    attention: Attention

    def attend(self, call: LayerCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        layer = self.kv[call.layer]
        layer.store(self.batch.kv_slots, k, v)
        out, lse = self.attention.attend(q, layer, self.batch, call.spec, need_lse=call.sinks is not None)
        if call.sinks is None:
            return out
        assert lse is not None
        return out * torch.sigmoid(lse - call.sinks).unsqueeze(-1).to(out.dtype)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sluice_step: StepAttention | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for transformers, by the step that the model was called with.

    Args:
        query: [1, heads, N, head_dim]; `key` and `value` likewise with their heads.

    Returns:
        [1, N, heads, head_dim], and None in place of the attention weights.

    Raises:
        CheckpointError: the layer requires something that paged attention does not support.
    """
    unsupported = sorted(
        name for name, value in others.items() if not (name in IGNORED or value is None or value is False)
    )
    if sluice_step is None:
        raise CheckpointError(f"{type(module).__name__} does not pass on the arguments that its attention needs")
    if attention_mask is not None:
        raise CheckpointError(f"{type(module).__name__} makes its own attention mask")
    if unsupported:
        raise CheckpointError(f"{type(module).__name__} asks its attention for {', '.join(unsupported)}")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise CheckpointError(f"{type(module).__name__} lets tokens attend to later tokens")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise CheckpointError(f"{type(module).__name__} has no layer index")
    if dropout:
        raise CheckpointError(f"{type(module).__name__} uses dropout in its attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    spec = _spec(query.shape[1], key.shape[1], query.shape[3], query.dtype, scale, sliding_window, softcap)
    call = LayerCall(layer, spec, s_aux)
    out = sluice_step.attend(call, _tokens_first(query), _tokens_first(key), _tokens_first(value))
    return out.unsqueeze(0), None


@lru_cache
def _spec(
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> AttentionSpec:
    """Return the spec of a layer, built once: a layer passes the same values at every call."""
    return AttentionSpec(heads, kv_heads, head_dim, dtype, scale, window=window, softcap=softcap)


def _tokens_first(x: torch.Tensor) -> torch.Tensor:
    """Return x [1, heads, N, head_dim] as [N, heads, head_dim]."""
    return x.squeeze(0).transpose(0, 1)


def register() -> None:
    """Register `attend` with transformers as `NAME`. A second call does nothing."""
    AttentionInterface.register(NAME, attend)


@dataclass
class _Hidden(ModelOutput):  # type: ignore[misc]
    """The output of a decoder, with every field that any head reads."""

    last_hidden_state: torch.Tensor | None = None
    past_key_values: None = None
    hidden_states: None = None
    attentions: None = None
    cross_attentions: None = None
    router_logits: None = None


class _Identity(nn.Module):
    """Replaces the decoder of a causal language model, and returns its input as the hidden states."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Hidden:
        return _Hidden(last_hidden_state=inputs_embeds)


class TransformersLM(PagedLM):
    """A causal language model of transformers, separated into decoder and head.

    The head is the original model without its decoder, so it still applies a bias, a soft cap or a scale to the logits.

    Args:
        model: in evaluation mode, its attention implementation is `NAME`. Its decoder is removed from it.
    """

    def __init__(self, model: PreTrainedModel, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.decoder = model.get_decoder()
        name_of_decoder = next(name for name, module in model.named_modules() if module is self.decoder)
        model.set_submodule(name_of_decoder, _Identity())
        self.head = model

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        output = self.decoder(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            sluice_step=PagedStep(batch, kv, attention),
        )
        return output.last_hidden_state[0, batch.logit_rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(inputs_embeds=hidden[None], use_cache=False).logits[0]
