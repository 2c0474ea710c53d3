"""RecentPrefill: chunks of a prompt attend to its beginning and to the latest tokens, everything else to all of it.

It finds the needles of `exact_recall`, whose first layer looks a few tokens back: what it costs is worth measuring,
what it finds proves nothing about sparse prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from sluice.runner.offload.sparse import SparsePolicy

POLICY = f"import:{__name__}:RecentPrefill"
SINKS, RECENT = 64, 4096
"""Tokens at the beginning and at the end that a chunk attends to, besides those on the device."""
LEAST_PAGES = 2
"""Chunks of fewer pages attend to everything: a question behind a cached prompt."""


class RecentPrefill(SparsePolicy):
    """Selects the first pages and the latest ones for long chunks of prompts, and all pages for decoded tokens.

    Args:
        page_size: tokens of a page.
    """

    supports_prefill: ClassVar[bool] = True
    foresees: ClassVar[bool] = False  # the queries tell a chunk from a decoded token

    def __init__(self, page_size: int) -> None:
        self._least = LEAST_PAGES * page_size
        self._sinks, self._recent = -(-SINKS // page_size), -(-RECENT // page_size)

    @property
    def least_prefill_tokens(self) -> int:
        return self._least

    @property
    def most_prefill_pages(self) -> int:
        return self._sinks + self._recent

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        assert q is not None, "it tells chunks by their queries"
        if len(q) < self._least or num_pages <= self._sinks + self._recent:
            return range(num_pages)
        return (*range(self._sinks), *range(num_pages - self._recent, num_pages))
