"""A picture of a prefix tree that is made from its events alone, and compared with the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from sluice.kv.digests import page_digests
from sluice.kv.events import EventLog, PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node, namespace_of, tokens_of
from sluice.types import Tier


class Page(NamedTuple):
    """What an event says of a page."""

    parent: bytes | None
    tokens: tuple[int, ...]
    extra_key: str


Picture = dict[Tier, dict[bytes, Page]]
"""The pages of each tier, by digest."""


class Mirror:
    """The pages of each tier, as the events say."""

    def __init__(self) -> None:
        self.pages: Picture = {tier: {} for tier in Tier}

    def apply(self, events: Iterable[PageEvent]) -> None:
        """Bring the picture up to date. A page is stored only where it is not, and removed only where it is."""
        for event in events:
            match event:
                case PagesStored(parent, digests, tokens, size, extra_key, tier):
                    assert len(tokens) == size * len(digests), event
                    for index, digest in enumerate(digests):
                        assert digest not in self.pages[tier], f"{event} stores a page twice"
                        self.pages[tier][digest] = Page(parent, tokens[index * size : (index + 1) * size], extra_key)
                        parent = digest
                case PagesRemoved(digests, tier):
                    for digest in digests:
                        del self.pages[tier][digest]
                case PagesCleared():
                    self.pages = {tier: {} for tier in Tier}


class PageMirror:
    """A mirror of the prefix tree that writes into `log`.

    Args:
        page_size: tokens of a page.
        met: what the events were -> how often; counts are added to it.
    """

    def __init__(self, page_size: int, met: Counter[str] | None = None) -> None:
        self.log = EventLog(page_size)
        self.mirror = Mirror()
        self._met = Counter[str]() if met is None else met

    def check(self, kv: KVManager) -> None:
        """Take what was logged, and compare the mirror with the tree."""
        events = self.log.take()
        self._count(events)
        self.mirror.apply(events)
        assert self.mirror.pages == picture_of(kv)

    def _count(self, events: Sequence[PageEvent]) -> None:
        for event in events:
            match event:
                case PagesStored(digests=digests, tier=tier):
                    self._met[f"stored on the {tier}"] += 1
                    self._met["several pages at once"] += len(digests) > 1
                case PagesRemoved(tier=tier):
                    self._met[f"removed from the {tier}"] += 1
                case PagesCleared():
                    self._met["cleared"] += 1
                    self._met["cleared, and something left"] += len(events) > 1


def picture_of(kv: KVManager) -> Picture:
    """What a prefix tree holds, read off the tree."""
    found: Picture = {tier: {} for tier in Tier}
    for node in kv.tree.nodes():
        digest, page = named(node)
        if node.page >= 0:
            found[Tier.DEVICE][digest] = page
        for tier, place in zip(kv.tiers.order, node.copies.pages if node.copies else (), strict=False):
            if place >= 0:
                found[tier][digest] = page
    return found


def named(node: Node) -> tuple[bytes, Page]:
    """The digest of a node from the tokens of its whole path, and what an event must say of it."""
    path = [node]
    while path[-1].parent is not None and path[-1].parent.parent is not None:
        path.append(path[-1].parent)
    return _named_by(tuple(each.key for each in reversed(path)), namespace_of(node))


@lru_cache(1 << 14)
def _named_by(path: tuple[bytes, ...], extra_key: str) -> tuple[bytes, Page]:
    keys = [tokens_of(key) for key in path]
    digests = list(page_digests([token for key in keys for token in key], len(keys[0]), extra_key))
    return digests[-1], Page(digests[-2] if len(digests) > 1 else None, keys[-1], extra_key)
