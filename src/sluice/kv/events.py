"""Events: what the prefix cache has stored and given up, for those who keep a picture of it elsewhere.

A router that takes every event knows which pages are on which tier. An event names pages by their digests (`digests`),
and a stored page comes with its tokens and the page before it, so that the picture can be a tree as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.kv.nodes import NOWHERE, Node, digest_of, namespace_of, parent_of, tokens_of
from sluice.types import Tier


@dataclass(frozen=True, slots=True)
class PagesStored:
    """Pages that are on a tier from now on, each behind the one before it."""

    parent: bytes | None
    """Digest of the page before the first of them; None if it begins a context."""
    digests: tuple[bytes, ...]
    token_ids: tuple[int, ...]
    """The tokens of all of them, `page_size` each."""
    page_size: int
    extra_key: str
    """Namespace of the pages."""
    tier: Tier


@dataclass(frozen=True, slots=True)
class PagesRemoved:
    """Pages that are no longer on a tier. They may be on others."""

    digests: tuple[bytes, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class PagesCleared:
    """No tier holds a page any more. Those that were in use follow as `PagesStored`."""


PageEvent = PagesStored | PagesRemoved | PagesCleared


class NoEvents:
    """Collects nothing. `EventLog` overrides every method."""

    def stored(self, node: Node, tier: Tier) -> None:
        """Note that a node is on a tier now. Nodes before it have been noted, on some tier at some time."""

    def removed(self, node: Node, tier: Tier) -> None:
        """Note that a node is no longer on a tier, or that it has left the tree."""

    def cleared(self, left: Iterable[Node], order: Iterable[Tier]) -> None:
        """Note that all nodes but `left`, parents before children, have left the tree.

        Args:
            order: the tiers behind the device, by level.
        """


NO_EVENTS = NoEvents()


class EventLog(NoEvents):
    """Collects the events between two calls of `take`. Pages that follow one another share an event.

    Args:
        page_size: tokens of a page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._events: list[PageEvent] = []
        self._run: list[Node] = []
        """Nodes of the event that is being made."""
        self._tier = Tier.DEVICE
        """The tier on which the pages are."""
        self._is_stored = False
        """Whether its nodes were stored."""

    def stored(self, node: Node, tier: Tier) -> None:
        digest_of(node)  # now, as that of its parent is known
        if not (self._run and self._is_stored and self._tier is tier and node.parent is self._run[-1]):
            self._begin(tier, is_stored=True)
        self._run.append(node)

    def removed(self, node: Node, tier: Tier) -> None:
        if self._is_stored or self._tier is not tier:
            self._begin(tier, is_stored=False)
        self._run.append(node)

    def cleared(self, left: Iterable[Node], order: Iterable[Tier]) -> None:
        nodes = list(left)
        self._run.clear()
        self._events = [PagesCleared()]  # what was noted before changes nothing any more
        for node in nodes:
            if node.page != NOWHERE:
                self.stored(node, Tier.DEVICE)
        for level, tier in enumerate(order):
            for node in nodes:
                if node.copies is not None and node.copies.pages[level] != NOWHERE:
                    self.stored(node, tier)

    def take(self) -> tuple[PageEvent, ...]:
        """Return what happened since the last call, in order."""
        if not self._run and not self._events:
            return ()
        self._end_run()
        events, self._events = tuple(self._events), []
        return events

    def _begin(self, tier: Tier, *, is_stored: bool) -> None:
        self._end_run()
        self._tier, self._is_stored = tier, is_stored

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        digests = tuple(digest_of(node) for node in run)
        if not self._is_stored:
            self._events.append(PagesRemoved(digests, self._tier))
            return
        tokens = tuple(token for node in run for token in tokens_of(node.key))
        parent = parent_of(run[0]).digest or None
        self._events.append(PagesStored(parent, digests, tokens, self._page_size, namespace_of(run[0]), self._tier))
