"""Policies that select the pages of a long context that a chunk attends to. `Full` is the exact reference.

Tokens on the device (the chunk itself, and those before it that are not stored yet) are always attended to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sluice.types.footprint import KVSizes


class SparsePolicy(ABC):
    """Selects pages, which are numbered from the context's beginning."""

    supports_prefill: ClassVar[bool] = False
    """Whether it selects for chunks of prompts too. Otherwise they attend to all pages."""
    foresees: ClassVar[bool] = True
    """Whether it needs no queries: then pages of all layers are loaded ahead. Otherwise those of a layer load once its
    queries are computed."""
    wants_keys: ClassVar[bool] = False
    """Whether it needs the keys of pages."""

    @property
    def wide_layers(self) -> int:
        """First layers, in which every chunk attends to all pages."""
        return 0

    @property
    def most_pages(self) -> int | None:
        """Most pages that it selects for a decoded token in the other layers; None: all."""
        return None

    @property
    def most_prefill_pages(self) -> int | None:
        """Most pages that it selects for a chunk of a prompt in the other layers, if it `supports_prefill`; None: all.
        As many are paid for."""
        return None

    @property
    def least_prefill_tokens(self) -> int:
        """Fewest tokens of a chunk of a prompt for which it selects. Shorter ones attend to all pages: a question
        behind a cached document, say."""
        return 0

    def selects_for(self, num_tokens: int, *, is_decode: bool) -> bool:
        """Return whether it selects for a chunk of so many tokens. Others attend to all pages in all layers."""
        return is_decode or (self.supports_prefill and num_tokens >= self.least_prefill_tokens)

    @property
    def kept_bytes(self) -> int:
        """Bytes on the device of what it keeps of pages now."""
        return 0

    def page_bytes(self, kv: KVSizes) -> int:
        """Return the bytes on the device of what it keeps of each page of a model."""
        return 0

    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:  # noqa: B027
        """Keep what selection needs of full pages, if the policy `wants_keys`.

        A request's own pages are given when they leave the device. Those of a cached prefix are given when they pass
        through the ring for the first time: its first chunk attends to all of them. A page may be given again, if some
        of its tokens were drafts that turned out to be wrong.

        Args:
            slot: slot of the request.
            pages: numbers of the pages from the request's beginning.
            k: [pages, page_size, kv_heads, head_dim], after rotary embedding.
        """

    def forget(self, slot: int) -> None:  # noqa: B027
        """Forget the request of a slot."""

    @abstractmethod
    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        """Return the pages that a chunk attends to in a layer, in ascending order: one at least.

        Args:
            num_pages: pages that it selects from, from the context's beginning: of a decoded token a number that
                follows from its position. Those behind are attended to.
            q: [tokens, heads, head_dim], after rotary embedding; None if the policy `foresees`.
        """


@dataclass(frozen=True, slots=True)
class Full(SparsePolicy):
    """Selects all pages."""

    supports_prefill = True

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        return range(num_pages)


@dataclass(frozen=True, slots=True)
class Window(SparsePolicy):
    """Selects the first pages and the latest ones for decoded tokens; chunks of prompts attend to all pages.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024; positions are left as they are.
    """

    sinks: int
    """Pages at the beginning."""
    recent: int
    """Pages at the end."""

    @property
    def most_pages(self) -> int:
        return self.sinks + self.recent

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        if num_pages <= self.sinks + self.recent:
            return range(num_pages)
        return (*range(self.sinks), *range(num_pages - self.recent, num_pages))
