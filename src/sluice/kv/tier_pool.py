"""Slots: the pages of one tier behind the device."""

from __future__ import annotations

import heapq

from sluice.kv.pages import PagePool
from sluice.kv.prefix import Node
from sluice.kv.tier_copies import NOWHERE
from sluice.types import Tier, TierUse

STALE = 4
"""A queue of nodes may have so many entries for each page, most of which nobody waits for any more; then it is cleared.
"""


class TierPool:
    """Who has a page, and who gives one up: whoever was used least recently, a node after its children."""

    def __init__(self, place: int, tier: Tier, num_pages: int) -> None:
        self.place = place
        self.tier = tier
        self.pool = PagePool(num_pages)
        self.checksums = [0] * num_pages
        self.num_stored = self.num_failed_stores = self.num_loaded = self.num_failed_loads = self.num_lost = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of (used, number of the offer, node): who may go. Stale entries are skipped when they come up."""
        self._offers = 0

    def offer(self, node: Node) -> None:
        """A node that has no child on this tier: it may go."""
        if not self._may_go(node):
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > STALE * self.pool.num_pages:
            nodes = {id(entry[2]): entry[2] for entry in self._leaves if self._may_go(entry[2])}
            self._leaves = [(entry.used, number, entry) for number, entry in enumerate(nodes.values())]
            heapq.heapify(self._leaves)

    def least_recent(self) -> Node | None:
        """Whoever may go and was used least recently."""
        while self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if self._may_go(node):
                if node.used == used:
                    return node
                self.offer(node)
        return None

    def is_offered(self, node: Node) -> bool:
        """Slow: for checking laws."""
        return any(entry is node for _, _, entry in self._leaves)

    def _may_go(self, node: Node) -> bool:
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        return not copies.is_read and copies.pages[self.place] != NOWHERE and copies.children[self.place] == 0

    def use(self) -> TierUse:
        return TierUse(
            self.tier,
            self.pool.num_pages,
            self.pool.num_pages - self.pool.num_free,
            self.num_stored,
            self.num_failed_stores,
            self.num_loaded,
            self.num_failed_loads,
            self.num_lost,
        )
