"""SparsePolicy: which blocks of a long context a chunk attends to. `Full` is the exact reference for every other.

What is on the device (the chunk itself and the tokens before it that were not stored yet) is always attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class SparsePolicy(Protocol):
    """A rule of selection. Blocks are numbered from the context's beginning; the last may be partly filled."""

    @property
    def supports_prefill(self) -> bool:
        """Chunks of several tokens obey it too; else they attend to all blocks."""
        ...

    @property
    def foresees(self) -> bool:
        """It needs no queries: the blocks of later layers can be loaded ahead."""
        ...

    @property
    def wants_keys(self) -> bool:
        """It is told of pages that leave the device."""
        ...

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:
        """A full page of a request left the device: keep what selection needs of it.

        Pages of a cached prefix were never here, so there may be pages it was not told of.

        Args:
            slot: the request's.
            page: number of the page from the request's beginning.
            k: [page_size, kv_heads, head_dim], turned.
        """
        ...

    def forget(self, slot: int) -> None:
        """The slot's request is gone."""
        ...

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        """The blocks that a chunk attends to in a layer, in ascending order.

        Args:
            num_blocks: there are that many.
            q: [tokens, heads, head_dim], turned; None if the policy `foresees`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Full:
    """All blocks."""

    supports_prefill = True
    foresees = True
    wants_keys = False

    def page_left(self, slot: int, layer: int, page: int, k: torch.Tensor) -> None:
        pass

    def forget(self, slot: int) -> None:
        pass

    def select(self, slot: int, layer: int, num_blocks: int, q: torch.Tensor | None) -> Sequence[int]:
        """See `SparsePolicy.select`."""
        return range(num_blocks)


@dataclass(frozen=True, slots=True)
class Window:
    """The first blocks and the latest ones (Xiao et al., "Efficient Streaming Language Models with Attention Sinks",
    2024; positions are left as they are). While it prefills, a prompt sees all of itself."""

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
        """See `SparsePolicy.select`."""
        if num_blocks <= self.sinks + self.recent:
            return range(num_blocks)
        return (*range(self.sinks), *range(num_blocks - self.recent, num_blocks))
