"""A sign of life for every layer: attention is what every layer of every model asks for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sluice.attention.base import AttentionBackend, ForwardBatch, LayerKV


class TickingAttention:
    """A backend in front of another one, which ticks at every call.

    Args:
        inner: attends.
        tick: called first; takes less than a microsecond or so.
    """

    def __init__(self, inner: AttentionBackend, tick: Callable[[], None]) -> None:
        self._inner = inner
        self._tick = tick

    def attend(
        self,
        q: torch.Tensor,
        kv: LayerKV,
        batch: ForwardBatch,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `AttentionBackend.attend`."""
        self._tick()
        return self._inner.attend(
            q,
            kv,
            batch,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            k_scale=k_scale,
            v_scale=v_scale,
            need_lse=need_lse,
        )
