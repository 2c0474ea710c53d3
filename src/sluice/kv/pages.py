"""PagePool: which pages of a device or tier are free."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """A fixed number of pages, each free or taken. The pool does not know what a taken page is for.

    The free list is a stack: the page given back last is taken first, so that a page freed too early is overwritten
    at once and the mistake shows.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._taken = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        return frozenset(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` pages; as many must be free."""
        assert 0 <= count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        first = len(self._free) - count
        pages = self._free[first:][::-1]
        del self._free[first:]
        for page in pages:
            self._taken[page] = 1
        return pages

    def take_these(self, pages: Iterable[int]) -> None:
        """Take these pages, all of which must be free. Slow: for the start of an engine."""
        wanted = set(pages)
        assert not any(self._taken[page] for page in wanted), f"some of the pages {wanted} are taken"
        self._free = [page for page in self._free if page not in wanted]
        for page in wanted:
            self._taken[page] = 1

    def give(self, pages: Iterable[int]) -> None:
        """Give taken pages back."""
        for page in pages:
            assert self._taken[page], f"page {page} is given back twice"
            self._taken[page] = 0
            self._free.append(page)
