"""Policies that select the blocks of a long context that a chunk attends to. `Full` is the exact reference.

Tokens on the device (the chunk itself, and those before it that are not stored yet) are always attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class SparsePolicy(Protocol):
    """Selects blocks, which are numbered from the context's beginning; the last may be partly filled."""

    @property
    def supports_prefill(self) -> bool:
        """Whether it selects for chunks of prompts too. Otherwise they attend to all blocks."""
        ...

    @property
    def foresees(self) -> bool:
        """Whether it needs no queries: then blocks of all layers are loaded ahead. Otherwise those of a layer load
        once its queries are computed."""
        ...

    @property
    def wants_keys(self) -> bool:
        """Whether it needs the keys of pages that leave the device."""
        ...

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:
        """Keep what selection needs of a full page that leaves the device.

        Pages of a cached prefix were never on the device, so the policy does not see all pages.

        Args:
            slot: slot of the request.
            page: number of the page from the request's beginning.
            k: [page_size, kv_heads, head_dim], after rotary embedding.
        """
        ...

    def forget(self, slot: int) -> None:
        """Forget the request of a slot."""
        ...

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        """Return the blocks that a chunk attends to in a layer, in ascending order: one at least.

        Args:
            num_blocks: blocks of the context.
            q: [tokens, heads, head_dim], after rotary embedding; None if the policy `foresees`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Full:
    """Selects all blocks."""

    supports_prefill = True
    foresees = True
    wants_keys = False

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:
        pass

    def forget(self, slot: int) -> None:
        pass

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        return range(num_blocks)


@dataclass(frozen=True, slots=True)
class Window:
    """Selects the first blocks and the latest ones for decoded tokens; chunks of prompts attend to all blocks.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024; positions are left as they are.
    """

    sinks: int
    """Blocks at the beginning."""
    recent: int
    """Blocks at the end."""
    supports_prefill = False
    foresees = True
    wants_keys = False

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:
        pass

    def forget(self, slot: int) -> None:
        pass

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        if num_blocks <= self.sinks + self.recent:
            return range(num_blocks)
        return (*range(self.sinks), *range(num_blocks - self.recent, num_blocks))
