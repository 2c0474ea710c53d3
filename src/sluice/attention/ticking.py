"""A sign of life for every layer: every layer of every model calls attention."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.spec import AttentionSpec


class TickingAttention(Attention):
    """Attention that ticks at every call.

    Args:
        inner: attends.
        tick: called first; should take about a microsecond at most.
    """

    def __init__(self, inner: Attention, tick: Callable[[], None]) -> None:
        self._inner = inner
        self._tick = tick

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        self._tick()
        return self._inner.attend(q, kv, batch, spec, need_lse=need_lse)

    def plan(self, batch: ForwardBatch) -> None:
        self._inner.plan(batch)

    def plan_static(self, batch: ForwardBatch) -> None:
        self._inner.plan_static(batch)
