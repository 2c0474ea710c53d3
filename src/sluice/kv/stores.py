"""Stores: copies down, from the device or from a tier to the tiers below it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sluice.kv.flights import Flights, NodeStore, OffloadStore
from sluice.kv.nodes import NOWHERE, Node, TierCopies, copies_of, key_of, parent_of
from sluice.kv.tier_pool import STALE, TierPages
from sluice.types import CopyDone, Tier, TierLimits

SELECTIVE_HITS = 1
"""Times a page was taken from the cache before the policy `selective` stores it."""


class Stores:
    """Which pages are to be stored, where there is room for them, and what gives way."""

    def __init__(self, limits: TierLimits, pages: TierPages, flights: Flights) -> None:
        self._policy = limits.write_policy
        self._pages = pages
        self._flights = flights
        self._wanted: deque[tuple[Node, int]] = deque()
        """Nodes to be stored while they are on the device, with the level of the tier."""
        self._offloaded: deque[OffloadStore] = deque()
        """Stores of offloaded requests, in order."""

    @property
    def num_wanted(self) -> int:
        """Stores of nodes that wait for room in a plan."""
        return len(self._wanted)

    @property
    def has_work(self) -> bool:
        """Whether a store waits for room in a plan."""
        return bool(self._wanted or self._offloaded)

    def published(self, node: Node) -> None:
        """Store a node that has a page of the device now, if the policy says so."""
        self._pages.note(node)
        if self._policy == "write-through":
            self._want(node)

    def used(self, path: Sequence[Node]) -> None:
        """Count that these nodes were taken from the cache; the policy `selective` stores them then."""
        if self._policy != "selective":
            return
        for node in path:
            copies = copies_of(node)
            copies.hits += 1
            if copies.hits == SELECTIVE_HITS:
                self._want(node)

    def keep(self, node: Node) -> bool:
        """Store a node that is about to leave the device, if the policy says so. Returns whether it is on a tier, or
        will."""
        copies = copies_of(node)
        if not copies.is_kept and self._is_worth_storing(copies):
            self._store(node, 0, Tier.DEVICE, node.page)
        if not copies.is_kept:
            self._pages.pools[0].num_lost += 1
        return copies.is_kept

    def add_offloaded(self, store: OffloadStore) -> None:
        """Queue the store of an offloaded request's page."""
        self._offloaded.append(store)

    def plan(self) -> None:
        """Plan the stores that wait, as far as the budgets let it; those of offloaded requests go first."""
        while self._offloaded and (self._offloaded[0].owner.is_closed or self._flights.has_room()):
            store = self._offloaded.popleft()
            if store.owner.is_closed:
                continue
            store.owner.sending.add(store.index)
            tier = self._pages.pools[store.level].tier
            key = store.key if tier is Tier.DISK else None
            self._flights.plan(store, (Tier.DEVICE, store.source), (tier, store.page), key=key)
        while self._wanted and self._flights.has_room():
            node, level = self._wanted.popleft()
            if _lacks(node, level):
                self._store(node, level, Tier.DEVICE, node.page)

    def ended(self, store: NodeStore, done: CopyDone) -> None:
        """Note that the store of a node has ended."""
        copies, tier = copies_of(store.node), self._pages.pools[store.level]
        copies.storing[tier.level] = False
        if done.error is None:
            tier.num_stored += 1
        else:
            tier.num_failed_stores += 1
        if done.error is None and not copies.gone:
            self._pages.child_left(store.node, tier.level)  # `put` counts it again
            self._pages.put(store.node, tier.level, store.page, done.checksum)
            tier.offer(store.node)
            return
        self._pages.free(tier.level, store.page)
        if not copies.gone:
            self._pages.child_left(store.node, tier.level)
            self._pages.drop_if_nowhere(store.node)

    def ended_offloaded(self, store: OffloadStore, done: CopyDone) -> None:
        """Note that the store of an offloaded request's page has ended."""
        tier = self._pages.pools[store.level]
        if done.error is None:
            tier.num_stored += 1
        else:
            tier.num_failed_stores += 1
        tier.checksums[store.page] = done.checksum
        store.owner.ended(store.index, done.error)
        if store.owner.is_closed:  # the page was kept, since the copy might have overwritten what came there next
            tier.private.remove(store.page)
            self._pages.free(store.level, store.page)

    def take_page(self, level: int) -> int | None:
        """Take a page of a tier; if none is free, the node that was used least recently gives up its own."""
        tier = self._pages.pools[level]
        if not tier.pool.num_free:
            node = tier.least_recent()
            if node is None:
                return None
            self._evict(node, level)
        return tier.pool.take(1)[0] if tier.pool.num_free else None

    def reader_left(self, node: Node) -> None:
        """Do what had to wait while a node's copies were read: give them up if the node has left the tree, or if they
        are suspect. Nodes that lost suspect copies are stored again."""
        copies = copies_of(node)
        if copies.is_read:
            return
        for level, page in enumerate(copies.pages):
            if copies.gone and page != NOWHERE:
                copies.pages[level] = NOWHERE
                self._pages.free(level, page)
            elif copies.is_suspect and page != NOWHERE:
                self._pages.give_up(node, level)
            self._pages.pools[level].offer(node)
        if copies.is_suspect and not copies.gone:
            copies.is_suspect = False
            self._pages.drop_if_nowhere(node)
            if self._policy != "write-back" and self._is_worth_storing(copies):
                self._want(node)

    def _is_worth_storing(self, copies: TierCopies) -> bool:
        if self._policy == "never":
            return False
        return self._policy != "selective" or copies.hits >= SELECTIVE_HITS

    def _want(self, node: Node) -> None:
        """Store a node on every tier where it is not, when there is room in a plan."""
        num_tiers = len(self._pages.pools)
        if len(self._wanted) > STALE * num_tiers * self._pages.tree.num_pages:
            self._wanted = deque(each for each in self._wanted if _lacks(*each))
        for level in range(num_tiers):
            if _lacks(node, level):
                self._wanted.append((node, level))

    def _store(self, node: Node, level: int, source: Tier, source_page: int) -> None:
        """Plan a copy to a tier, if there is room for it in the plan and on the tier."""
        copies, parent = copies_of(node), parent_of(node)
        if not self._flights.has_room():
            return
        if parent.copies is not None:
            parent.copies.children[level] += 1  # now: its parent may not make room for it
        page = self.take_page(level)
        if page is None or copies.gone or not self._flights.has_room():  # to make room others may have been moved
            if page is not None:
                self._pages.free(level, page)
            self._pages.child_left(node, level)
            return
        copies.storing[level] = True
        target = self._pages.pools[level].tier
        key = key_of(node) if target is Tier.DISK else None
        self._flights.plan(NodeStore(node, level, page), (source, source_page), (target, page), key=key)

    def _evict(self, node: Node, level: int) -> None:
        """Give up a copy, after moving it to the next tier if it is the only one."""
        copies = copies_of(node)
        is_last = node.page < 0 and sum(page != NOWHERE for page in copies.pages) + sum(copies.storing) == 1
        if is_last and level + 1 < len(self._pages.pools):
            self._store(node, level + 1, self._pages.pools[level].tier, copies.pages[level])
        if not copies.gone:
            self._pages.give_up(node, level)
            self._pages.drop_if_nowhere(node)


def _lacks(node: Node, level: int) -> bool:
    """Return whether a node is on the device, and neither on a tier nor on the way there."""
    copies = copies_of(node)
    return node.page >= 0 and copies.pages[level] == NOWHERE and not copies.storing[level]
