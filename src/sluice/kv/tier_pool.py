"""The pages of the tiers behind the device, and the nodes that are there."""

from __future__ import annotations

import heapq

from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.nodes import NOWHERE, Node, TierCopies, copies_of, digest_of, parent_of
from sluice.kv.pages import PagePool
from sluice.kv.prefix_cache import PrefixTree
from sluice.types import Tier, TierLimits, TierUse

STALE = 4
"""Entries that a queue of nodes may have for each page, most of them stale; then it is cleared."""


class TierPool:
    """The pages of one tier. The node that was used least recently gives its page up first, after its children."""

    def __init__(self, level: int, tier: Tier, num_pages: int) -> None:
        self.level = level
        """The tier's index in the order of tiers, fastest first."""
        self.tier = tier
        self.pool = PagePool(num_pages)
        self.checksums = [0] * num_pages
        """Checksum of each page, as its store returned it."""
        self.private: set[int] = set()
        """Pages that belong to no node: those of offloaded requests."""
        self.unreadable: set[int] = set()
        """Pages in use that could not be read: they are retired when they are given back."""
        self.retired: list[int] = []
        """Pages that could not be read, in no use. They may be bad for good, so they are taken for offloaded requests
        alone, and only where there is no other page: one that needs all of the tier would wait for ever."""
        self.num_stored = self.num_failed_stores = self.num_loaded = self.num_failed_loads = self.num_lost = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of (used, number of the offer, node): nodes that may go. Stale entries are skipped when they come up."""
        self._offers = 0

    def offer(self, node: Node) -> None:
        """Queue a node for eviction, if it has no child on this tier and is not being read."""
        if not self._may_go(node):
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > STALE * self.pool.num_pages:
            nodes = {id(entry[2]): entry[2] for entry in self._leaves if self._may_go(entry[2])}
            self._leaves = [(entry.used, number, entry) for number, entry in enumerate(nodes.values())]
            heapq.heapify(self._leaves)

    def least_recent(self) -> Node | None:
        """Take the node that may go and was used least recently out of the queue."""
        while self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if self._may_go(node):
                if node.used == used:
                    return node
                self.offer(node)
        return None

    def is_offered(self, node: Node) -> bool:
        """Return whether a node is queued for eviction. Slow: for checking laws."""
        return any(entry is node for _, _, entry in self._leaves)

    def _may_go(self, node: Node) -> bool:
        copies = copies_of(node)
        return not copies.is_read and copies.pages[self.level] != NOWHERE and copies.children[self.level] == 0

    def use(self) -> TierUse:
        """Return how full the tier is, and what went there and came back."""
        return TierUse(
            self.tier,
            self.pool.num_pages,
            self.pool.num_pages - self.pool.num_free - len(self.retired),
            self.num_stored,
            self.num_failed_stores,
            self.num_loaded,
            self.num_failed_loads,
            self.num_lost,
            len(self.retired),
        )


class TierPages:
    """Which nodes of the prefix tree are on which pages of the tiers.

    Args:
        events: receives which nodes get and lose a page.
    """

    def __init__(self, limits: TierLimits, events: NoEvents = NO_EVENTS) -> None:
        self.events = events
        sizes = ((Tier.HOST, limits.host_pages), (Tier.DISK, limits.disk_pages))
        self.pools = [TierPool(level, *size) for level, size in enumerate(size for size in sizes if size[1])]
        self.dropped: dict[int, None] = {}
        """Pages of the disk that its index is to forget, in order."""
        self._tree: PrefixTree | None = None

    @property
    def tree(self) -> PrefixTree:
        """The tree whose nodes are here."""
        assert self._tree is not None, "tiers without a tree"
        return self._tree

    def attach(self, tree: PrefixTree) -> None:
        """Set the tree; called once."""
        self._tree = tree

    def of(self, tier: Tier) -> TierPool:
        return next(pool for pool in self.pools if pool.tier is tier)

    def note(self, node: Node, digest: bytes | None = None) -> TierCopies:
        """Return a node's copies; a new node has none yet.

        Args:
            digest: of the node, if it is known.
        """
        if node.copies is None:
            node.copies = TierCopies(len(self.pools))
            node.digest = digest or digest_of(node)
        return node.copies

    def put(self, node: Node, level: int, page: int, checksum: int) -> None:
        """Note that a node has a copy on a page of a tier."""
        copies_of(node).pages[level] = page
        self.pools[level].checksums[page] = checksum
        self.events.stored(node, self.pools[level].tier)
        parent = parent_of(node)
        if parent.copies is not None:
            parent.copies.children[level] += 1

    def free(self, level: int, page: int) -> None:
        """Give a page of a tier back. One that could not be read is retired."""
        tier = self.pools[level]
        if page in tier.unreadable:
            tier.unreadable.remove(page)
            tier.retired.append(page)
        else:
            tier.pool.give([page])
        if tier.tier is Tier.DISK:
            self.dropped[page] = None

    def give_up(self, node: Node, level: int) -> None:
        """Give up a node's copy on a tier."""
        copies = copies_of(node)
        page, copies.pages[level] = copies.pages[level], NOWHERE
        self.events.removed(node, self.pools[level].tier)
        self.free(level, page)
        self.child_left(node, level)

    def child_left(self, node: Node, level: int) -> None:
        """Note that a node has no copy on a tier any more, nor on the way there: its parent may be next to go."""
        parent = parent_of(node)
        if parent.copies is not None:
            parent.copies.children[level] -= 1
            self.pools[level].offer(parent)

    def drop_if_nowhere(self, node: Node) -> None:
        """Take a node that no tier holds any more out of the tree."""
        if node.page < 0 and not copies_of(node).is_kept:
            self.pools[0].num_lost += 1
            pages = self.tree.drop(node)
            assert not pages, f"pages {pages} lay behind {node}, which has none"
