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
class Asked:
    """One call of one layer."""

    layer: int
    window: int | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A step (see `paged.Step`) that notes what is asked and attends to nothing."""

    asked: list[Asked]

    def attend(self, call: AttentionCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.asked.append(Asked(call.layer, call.window, q.shape[1], k.shape[1], k.shape[2], v.shape[2]))
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
    asked: list[Asked] = []
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    model.get_decoder()(input_ids=token, position_ids=token, use_cache=False, sluice_step=_Recorder(asked))
    if not asked or [call.layer for call in asked] != list(range(len(asked))):
        raise _refused(model, f"its layers call attention in the order {[call.layer for call in asked]}")
    shapes = {(call.heads, call.kv_heads, call.head_dim) for call in asked}
    if len(shapes) > 1:
        raise _refused(model, f"its layers differ in (heads, KV heads, head size): {sorted(shapes)}")
    first = asked[0]
    if any(call.v_head_dim != call.head_dim for call in asked):
        raise _refused(model, f"its keys have {first.head_dim} elements a head and its values {first.v_head_dim}")
    _check_windows(model, config, asked)
    return Sizes(len(asked), first.heads, first.kv_heads, first.head_dim)


def _check_windows(model: PreTrainedModel, config: PreTrainedConfig, asked: Sequence[Asked]) -> None:
    """A window that transformers would put into its mask, and does not tell the attention of, would be lost."""
    fields = config.to_dict()
    window, kinds = fields.get("sliding_window"), fields.get("layer_types")
    if kinds is None:
        kinds = [FULL if window is None else SLIDING] * len(asked)
    for call, kind in zip(asked, kinds, strict=True):
        wanted = window if kind == SLIDING else None
        if call.window != wanted:
            raise _refused(model, f"layer {call.layer} asks for the window {call.window}, its config for {wanted}")


def _refused(model: PreTrainedModel, why: str) -> CheckpointError:
    return CheckpointError(f"{type(model).__name__} cannot run through transformers: {why}")
