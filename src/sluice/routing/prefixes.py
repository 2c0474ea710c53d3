"""PrefixIndex: which prefixes a replica has in its cache, by digests of pages of tokens.

Digests are those of the engine's own pages (`kv.digests`). What was sent to a replica is expected to be there soon.
Where the replica tells what it stores and removes, that is known, with the pages of answers too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sluice.kv.events import PageEvent, PagesRemoved, PagesStored

BYTES_PER_PAGE = 250
"""Memory that one digest takes in an index of CPython, at most."""
_EXPECTED = 1
"""Stands for a page that was sent, and of which the replica has reported nothing."""


class PrefixIndex:
    """A bounded set of digests. Those of the least recently sent prompts leave first.

    A digest stands for a whole prefix, so the tree of prefixes needs no links. A page is as recent as the latest
    prompt through it, and the pages of one prompt are the more recent the nearer they are to its beginning: none
    leaves before those behind it.

    Args:
        capacity: most digests.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._places: OrderedDict[bytes, int] = OrderedDict()
        """Where each page is: `_EXPECTED`, or a bit for each tier that holds it."""
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def most_bytes(self) -> int:
        """Memory that it takes when it is full."""
        return self._capacity * BYTES_PER_PAGE

    def match(self, digests: Sequence[bytes]) -> int:
        """Return how many of a prompt's first pages are in the set."""
        for index, digest in enumerate(digests):
            if digest not in self._places:
                return index
        return len(digests)

    def uncached(self, digests: Sequence[bytes], page_size: int, num_tokens: int) -> int:
        """Return how many tokens of a prompt are to be computed: at least the last one, since its logits are needed."""
        return max(1, num_tokens - self.match(digests) * page_size)

    def add(self, digests: Sequence[bytes]) -> None:
        """Note that a prompt was sent."""
        for digest in reversed(digests[: self._capacity]):
            self._places.setdefault(digest, _EXPECTED)
            self._places.move_to_end(digest)
        self._trim()

    def follow(self, event: PageEvent) -> None:
        """Note what the replica tells of its cache."""
        if isinstance(event, PagesStored):
            self.stored(event.digests, event.tier)
        elif isinstance(event, PagesRemoved):
            self.removed(event.digests, event.tier)
        else:
            self.cleared()

    def stored(self, digests: Sequence[bytes], tier: str = "") -> None:
        """Note that the replica holds pages on a tier. It may say so again."""
        bit = self._bit(tier)
        for digest in reversed(digests):
            self._places[digest] = self._places.get(digest, 0) & ~_EXPECTED | bit
        self._trim()

    def removed(self, digests: Iterable[bytes], tier: str = "") -> None:
        """Note that the replica holds pages on a tier no longer. Those that are on no other are gone."""
        others = ~_EXPECTED & ~self._bit(tier)
        for digest in digests:
            left = self._places.get(digest, 0) & others
            if left:
                self._places[digest] = left
            else:
                self._places.pop(digest, None)

    def cleared(self) -> None:
        """Note that the replica has forgotten all pages, or that what it reported was lost."""
        self._places.clear()

    def _bit(self, tier: str) -> int:
        return self._bits.setdefault(tier, 2 << len(self._bits))

    def _trim(self) -> None:
        while len(self._places) > self._capacity:
            self._places.popitem(last=False)
