"""The pages of layers with a window, as a runner without a model keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.types import Chunk, WindowLimits

NULL = -1
"""Stands for a page that no chunk has brought."""


class ShadowWindows:
    """Pages of (position, token) pairs beside those of `ShadowRunner`. All that a chunk's queries see must be in them.

    Args:
        page_size: tokens of a page.
    """

    def __init__(self, limits: WindowLimits, page_size: int) -> None:
        self._reach = limits.length - 1
        self._page_size = page_size
        self._kv: dict[tuple[int, int], tuple[int, int]] = {}
        self._rows: dict[int, list[int]] = {}

    def opened(self, slot: int) -> None:
        """Empty a slot's row."""
        self._rows[slot] = []

    def extend(self, chunk: Chunk) -> None:
        """Put a chunk's new pages where they belong in its row."""
        row, new_pages = self._rows[chunk.slot], chunk.new_window_pages
        if new_pages:
            first = -(-chunk.end // self._page_size) - len(new_pages)
            row[:] = (row + [NULL] * first)[:first] + list(new_pages)

    def write(self, slot: int, position: int, held: tuple[int, int]) -> None:
        """Write to a position of a slot."""
        self._kv[self._place(slot, position)] = held

    def check(self, chunk: Chunk, seen: Sequence[tuple[int, int] | None]) -> None:
        """Check that what a chunk's queries see is what the other layers have.

        Args:
            seen: what these have at the request's first positions, up to the chunk's end.
        """
        first = max(0, chunk.start - self._reach)
        found = [self._kv.get(self._place(chunk.slot, position)) for position in range(first, chunk.end)]
        assert found == list(seen[first:]), f"{chunk} sees {found} in its window, not {seen[first:]}"

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        page = self._rows[slot][position // self._page_size]
        assert page != NULL, f"slot {slot} has no page of windows for position {position}"
        return page, position % self._page_size
