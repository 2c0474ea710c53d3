"""KV-event sync: the pages that a replica's prefix cache stored and removed since an ingress asked last.

An ingress asks now and then, and names the first change that it lacks. So no replica waits for an ingress, each of
several ingresses gets what it lacks, and one that is new, or lacks changes that are no longer kept, gets all that the
cache holds.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.kv_events.wire import EventBatch, decode_batch, encode_batch
from sluice.types import Tier

MOST_KEPT = 1 << 16
"""Digests in the changes that are kept."""
AT_ONCE = 2048
"""Digests of one change: an index takes it in a few milliseconds."""
EVERYTHING = -1
"""Asks for all that the cache holds, instead of the changes from a number on."""


class KvChanges(NamedTuple):
    """Changes of a prefix cache, in order."""

    first: int
    """Number of the first one; `EVERYTHING`: they begin with `PagesCleared`."""
    following: int
    """Number of the change after them."""
    events: tuple[PageEvent, ...]
    """The changes, without the tokens of pages."""

    def encoded(self) -> tuple[int, int, bytes]:
        """Return the changes as plain data, with the events in the form of `kv_event_wire`."""
        return self.first, self.following, encode_batch(EventBatch(0.0, self.events))

    @classmethod
    def decoded(cls, first: int, following: int, batch: bytes) -> KvChanges:
        """Return the changes of which this is the data.

        Raises:
            WireError: the events cannot be read.
        """
        return cls(first, following, decode_batch(batch).events)


class KvEventLog:
    """Keeps the digests of the pages that a prefix cache holds, and the latest changes. It is a `KvEventSink`.

    Args:
        most_kept: digests in the changes that are kept.
    """

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._most_kept = most_kept
        self._held: dict[Tier, dict[bytes, None]] = {}
        """Digests by tier, in the order in which their pages were stored."""
        self._changes: deque[PageEvent] = deque()
        self._num_kept = 0
        self._following = 0

    def publish(self, batch: bytes) -> None:
        for event in decode_batch(batch).events:
            match event:
                case PagesStored(digests=digests, tier=tier):
                    self._held.setdefault(tier, {}).update(dict.fromkeys(digests))
                case PagesRemoved(digests, tier):
                    for digest in digests:
                        self._held.get(tier, {}).pop(digest, None)
                case PagesCleared():
                    self._held.clear()
            self._keep(event)

    def changes(self, first: int) -> KvChanges:
        """Return the changes from a number on, or, if some of them are not kept, all that the cache holds."""
        skipped = first - (self._following - len(self._changes))
        if first > self._following or skipped < 0:
            return KvChanges(EVERYTHING, self._following, (PagesCleared(), *self._all()))
        return KvChanges(first, self._following, tuple(islice(self._changes, skipped, None)))

    def _all(self) -> list[PageEvent]:
        found: list[PageEvent] = []
        for tier, held in self._held.items():
            digests = tuple(held)
            found += [_stored(digests[at : at + AT_ONCE], tier) for at in range(0, len(digests), AT_ONCE)]
        return found

    def _keep(self, event: PageEvent) -> None:
        if isinstance(event, PagesStored):
            event = _stored(event.digests, event.tier)
        self._changes.append(event)
        self._num_kept += _size(event)
        self._following += 1
        while self._num_kept > self._most_kept:
            self._num_kept -= _size(self._changes.popleft())


def _stored(digests: tuple[bytes, ...], tier: Tier) -> PagesStored:
    """Return an event without what a router does not need."""
    return PagesStored(None, digests, (), 0, "", tier)


def _size(event: PageEvent) -> int:
    return 1 if isinstance(event, PagesCleared) else len(event.digests)
