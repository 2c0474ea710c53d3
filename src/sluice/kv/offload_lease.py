"""Streams: the pages of requests whose context is longer than the device.

    pages of the context   0 ........... stored ........... sent ........... computed ........... scheduled
    where they lie         on the tier,  on both, the       on the device    being written
                           read there    store on its way   alone

A stream reserves all its pages on the tier, and a *window* of pages on the device, before it begins, and takes nothing
later: it never waits for memory and is never in the way of others for want of it. Page i of the context is written to
place `i mod window` on the device, once the page that was there is on the tier and no step in flight looks at it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sluice.kv.prefix import Node


@dataclass(slots=True, eq=False)
class OffloadLease:
    """The pages of one offloaded request."""

    extra_key: str
    row: list[int]
    """On the tier, in order, for all of the context: those of a cached prefix, then its own."""
    window: list[int]
    """On the device."""
    path: list[Node]
    """Nodes of the prefix tree that the first pages of `row` are: found there, or published since."""
    digest: bytes = b""
    """Of the tokens up to page `sent`."""
    stored: int = 0
    """Pages that can be read on the tier, from the context's beginning."""
    sent: int = 0
    """Pages on the tier or on the way there."""
    bases: deque[int] = field(default_factory=deque)
    """Of each part in flight, the first page that it looks for on the device."""
    told: int = 0
    """Pages of `row` that the runner knows."""
    error: str | None = None
    """A page could not be stored."""

    sending: set[int] = field(default_factory=set)
    """Pages of the context whose stores were planned and have not ended."""
    is_closed: bool = False
    done: set[int] = field(default_factory=set)
    """Pages behind `stored` whose stores have ended out of turn."""

    def ended(self, index: int, error: str | None) -> None:
        """The store of a page has ended."""
        self.sending.remove(index)
        if error is not None:
            self.error = f"page {index} of the context could not be stored: {error}"
            return
        self.done.add(index)
        while self.stored in self.done:
            self.done.remove(self.stored)
            self.stored += 1

    @property
    def first_held(self) -> int:
        """The first page of the context whose place on the device is in use."""
        return min(self.stored, self.bases[0]) if self.bases else self.stored

    @property
    def end_of_window(self) -> int:
        """The first page of the context that has no place on the device now."""
        return self.first_held + len(self.window)

    def places(self, first: int, end: int) -> tuple[int, ...]:
        """The pages on the device that hold pages `first` to `end` of the context."""
        assert self.first_held <= first <= end <= self.end_of_window, f"{first} to {end} of {self}"
        return tuple(self.window[index % len(self.window)] for index in range(first, end))
