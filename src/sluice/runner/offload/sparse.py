"""Policies that select the blocks of a long context that a chunk attends to. `Full` is the exact reference.

Tokens on the device (the chunk itself, and those before it that are not stored yet) are always attended to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch


class SparsePolicy(ABC):
    """Selects blocks, which are numbered from the context's beginning; the last may be partly filled."""

    supports_prefill: ClassVar[bool] = False
    """Whether it selects for chunks of prompts too. Otherwise they attend to all blocks."""
    foresees: ClassVar[bool] = True
    """Whether it needs no queries: then blocks of all layers are loaded ahead. Otherwise those of a layer load once its
    queries are computed."""
    wants_keys: ClassVar[bool] = False
    """Whether it needs the keys of pages that leave the device."""

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:  # noqa: B027
        """Keep what selection needs of a full page that leaves the device, if the policy `wants_keys`.

        Pages of a cached prefix were never on the device, so the policy does not see all pages. A page may be given
        again, if some of its tokens were drafts that turned out to be wrong.

        Args:
            slot: slot of the request.
            page: number of the page from the request's beginning.
            k: [page_size, kv_heads, head_dim], after rotary embedding.
        """

    def forget(self, slot: int) -> None:  # noqa: B027
        """Forget the request of a slot."""

    @abstractmethod
    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        """Return the blocks that a chunk attends to in a layer, in ascending order: one at least.

        Args:
            num_blocks: blocks of the context.
            q: [tokens, heads, head_dim], after rotary embedding; None if the policy `foresees`.
        """


@dataclass(frozen=True, slots=True)
class Full(SparsePolicy):
    """Selects all blocks."""

    supports_prefill = True

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        return range(num_blocks)


@dataclass(frozen=True, slots=True)
class Window(SparsePolicy):
    """Selects the first blocks and the latest ones for decoded tokens; chunks of prompts attend to all blocks.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024; positions are left as they are.
    """

    sinks: int
    """Blocks at the beginning."""
    recent: int
    """Blocks at the end."""

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        if num_blocks <= self.sinks + self.recent:
            return range(num_blocks)
        return (*range(self.sinks), *range(num_blocks - self.recent, num_blocks))
