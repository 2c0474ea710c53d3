"""The sizes of the pages of layers that see a window of the latest positions, and the place of each layer's pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Pages that some layers have of their own, because they need those of the latest positions alone.

    0 ........ num_pages | scratch page, if there is one | null page
    """

    length: int
    """Positions that a query sees at most, its own included: the largest window."""
    num_pages: int
    are_windowed: tuple[bool, ...]
    """Whether these are the pages of a layer, for each that has keys and values of its own."""

    def null_page(self, scratch_pages: int) -> int:
        """Return the number of the page of zeros, which is the last one."""
        return self.num_pages + scratch_pages

    def allocated(self, scratch_pages: int) -> int:
        """Return the pages of a layer, with those of no request."""
        return self.num_pages + scratch_pages + 1
