"""What a model of transformers asks of its attention, layer by layer, seen by calling it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from sluice.models.errors import CheckpointError
from sluice.models.fallback.paged import AttentionCall
from sluice.models.fallback.refuse import FULL, SLIDING


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of one layer."""

    layer: int
    window: int | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A step (see `paged.Step`) that records the calls and attends to nothing."""

    calls: list[LayerCall]

    def attend(self, call: AttentionCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls.append(LayerCall(call.layer, call.window, q.shape[1], k.shape[1], k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:2], v.shape[2])


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every layer of a model agrees on."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@torch.inference_mode()
def probe(model: PreTrainedModel, config: PreTrainedConfig, device: torch.device) -> Sizes:
    """Call the decoder with one token.

    Args:
        model: its attention set to `paged.NAME`.

    Raises:
        CheckpointError: its layers need what one pool of pages, the same for every layer, does not give.
    """
    calls: list[LayerCall] = []
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    model.get_decoder()(input_ids=token, position_ids=token, use_cache=False, sluice_step=_Recorder(calls))
    if not calls or [call.layer for call in calls] != list(range(len(calls))):
        raise _refused(model, f"its layers call attention in the order {[call.layer for call in calls]}")
    shapes = {(call.heads, call.kv_heads, call.head_dim) for call in calls}
    if len(shapes) > 1:
        raise _refused(model, f"its layers differ in (heads, KV heads, head size): {sorted(shapes)}")
    first = calls[0]
    if any(call.v_head_dim != call.head_dim for call in calls):
        raise _refused(model, f"its keys have {first.head_dim} elements a head and its values {first.v_head_dim}")
    _check_windows(model, config, calls)
    return Sizes(len(calls), first.heads, first.kv_heads, first.head_dim)


def _check_windows(model: PreTrainedModel, config: PreTrainedConfig, calls: Sequence[LayerCall]) -> None:
    """A window that transformers would put into its mask, and does not tell the attention of, would be lost."""
    fields = config.to_dict()
    window, kinds = fields.get("sliding_window"), fields.get("layer_types")
    if kinds is None:
        kinds = [FULL if window is None else SLIDING] * len(calls)
    for call, kind in zip(calls, kinds, strict=True):
        wanted = window if kind == SLIDING else None
        if call.window != wanted:
            raise _refused(model, f"layer {call.layer} asks for the window {call.window}, its config for {wanted}")


def _refused(model: PreTrainedModel, why: str) -> CheckpointError:
    return CheckpointError(f"{type(model).__name__} cannot run through transformers: {why}")
