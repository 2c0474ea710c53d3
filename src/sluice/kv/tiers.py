"""Tiers: which pages are on the host and on the disk as well, and which copies are to be made.

    device   -- store -->   host   -- store -->   disk        by the write policy, or when the tier above is full
    device   <-- load --    host or disk                      for a request that would compute them again

A node of the prefix tree may be on any of them. The rules:

- A copy counts once it has ended well. A page that was stored is known by the checksum its store came back with.
- The pages of a load have no other owner, and nothing of it is seen before all its copies have ended. Then the nodes
  before the first failed one get their pages.
- Each tier gives up what was used least recently, a node after its children; a node that no tier holds then leaves the
  tree with all below it.
- What is being read is not given up; what left the tree meanwhile is given up when the reading ends.

Copies are planned under two budgets, copies of a step and copies in flight. A load that does not fit waits, and so does
the store of a page that stays on the device. Other stores are given up: their pages will be computed again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.flights import Flights, LoadedPage, NodeStore, OffloadStore, PageLoad, StoreOwner
from sluice.kv.loads import Loads
from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.nodes import NOWHERE, Node, copies_of
from sluice.kv.prefix_cache import PrefixTree
from sluice.kv.stores import Stores
from sluice.kv.tier_pool import TierPages, TierPool
from sluice.types import CopyDone, PageCopy, PageKey, StoredPage, Tier, TierLimits, TierUse


class Tiers(LowerTiers):
    """The tiers behind the device.

    Args:
        limits: of one tier at least.
        page_size: tokens of a page.
        events: receives which nodes come to a tier, and which leave it.
    """

    def __init__(self, limits: TierLimits, page_size: int, events: NoEvents = NO_EVENTS) -> None:
        self.limits = limits
        self._page_size = page_size
        self._pages = TierPages(limits, events)
        self._flights = Flights(limits)
        self._stores = Stores(limits, self._pages, self._flights)
        self._loads = Loads(limits, self._pages, self._flights, self._stores)
        self._dropped_again: Sequence[int] = ()
        """Pages of the disk that a plan was to forget which never ran. They ask for no plan of their own, which might
        fail for ever."""
        self.num_read = 0
        """Nodes that offloaded requests read."""

    @property
    def pools(self) -> list[TierPool]:
        """The pages of each tier, fastest first."""
        return self._pages.pools

    @property
    def loads(self) -> list[PageLoad]:
        """Loads that are not over, oldest first."""
        return self._loads.open

    @property
    def flights(self) -> Flights:
        """Copies of the next plan, and copies that have not ended."""
        return self._flights

    @property
    def order(self) -> tuple[Tier, ...]:
        return tuple(tier.tier for tier in self.pools)

    @property
    def has_work(self) -> bool:
        return bool(self._flights.planned or self._pages.dropped) or self._stores.has_work or self._loads.has_work

    @property
    def num_in_flight(self) -> int:
        return len(self._flights.tickets)

    @property
    def num_loading(self) -> int:
        return sum(len(load.pages) for load in self.loads)

    # For the prefix tree

    def attach(self, tree: PrefixTree) -> None:
        self._pages.attach(tree)

    def published(self, node: Node) -> None:
        self._stores.published(node)

    def keeps(self, node: Node) -> bool:
        return self._stores.keep(node)

    def removed(self, node: Node) -> None:
        copies = copies_of(node)
        copies.gone = True
        for level, page in enumerate(copies.pages):
            if copies.storing[level] or (page != NOWHERE and copies.is_read):
                self._pages.child_left(node, level)  # the page itself is given up when it has been written, or read
                if page != NOWHERE:
                    self._pages.events.removed(node, self.pools[level].tier)
            elif page != NOWHERE:
                self._pages.give_up(node, level)

    def suspected(self, node: Node) -> None:
        copies_of(node).is_suspect = True
        self._stores.reader_left(node)

    # For the cached prefixes of resident requests

    def used(self, path: Sequence[Node]) -> None:
        self._stores.used(path)

    def loadable(self, nodes: Iterator[Node]) -> list[Node]:
        found = list(takewhile(self._loads.loadable, nodes))
        return found if len(found) >= self.limits.load_back_pages else []

    def is_loading(self, nodes: Iterator[Node]) -> bool:
        node = next(nodes, None)
        return node is not None and node.copies is not None and node.copies.is_loading

    def hold(self, nodes: Sequence[Node]) -> None:
        self._loads.hold(nodes)

    def load(self, nodes: list[Node], pages: list[int]) -> PageLoad:
        return self._loads.add(nodes, pages)

    def cancel(self, load: PageLoad) -> list[int]:
        return self._loads.cancel(load)

    def take_copies(self) -> tuple[tuple[PageCopy, ...], tuple[int, ...]]:
        self._loads.plan()
        self._stores.plan()
        copies = self._flights.take()
        stored = {copy.target_page for copy in copies if copy.target is Tier.DISK}
        forgotten = dict.fromkeys((*self._dropped_again, *self._pages.dropped))
        self._pages.dropped, self._dropped_again = {}, ()
        return copies, tuple(page for page in forgotten if page not in stored)

    def forget_again(self, dropped: Sequence[int]) -> None:
        self._dropped_again = dropped

    def ended(self, done: CopyDone) -> tuple[PageLoad | None, list[int]]:
        flight = self._flights.end(done)
        if isinstance(flight, LoadedPage):
            return self._loads.ended(flight, done.error)
        if isinstance(flight, NodeStore):
            self._stores.ended(flight, done)
        elif flight is not None:
            self._stores.ended_offloaded(flight, done)
        return None, []

    def forget_flights(self) -> list[int]:
        for ticket, flight in self._flights.forget():
            lost = CopyDone(ticket, error="lost")
            if isinstance(flight, LoadedPage):
                self._loads.lost(flight)
            elif isinstance(flight, NodeStore):
                self._stores.ended(flight, lost)
            else:
                self._stores.ended_offloaded(flight, lost)
        return [page for load in list(self.loads) for page in self.cancel(load)]

    def restore(self, pages: Sequence[StoredPage]) -> int:
        disk = self.pools[-1]
        if disk.tier is not Tier.DISK:
            raise ValueError(f"{len(pages)} pages of a disk tier, but there is none")
        for stored in pages:
            if not 0 <= stored.page < disk.pool.num_pages or len(stored.key.token_ids) != self._page_size:
                raise ValueError(
                    f"page {stored.page} with {len(stored.key.token_ids)} tokens on a disk tier of"
                    f" {disk.pool.num_pages} pages of {self._page_size}"
                )
        disk.pool.take_these(stored.page for stored in pages)
        followers: dict[bytes, list[StoredPage]] = {}
        for stored in pages:
            followers.setdefault(stored.key.parent, []).append(stored)
        taken: set[int] = set()
        grown: list[Node] = []
        row: list[tuple[Node | None, StoredPage]] = [(None, stored) for stored in followers.pop(b"", ())]
        for parent, stored in row:  # it grows meanwhile
            key = stored.key
            node = self._pages.tree.restored(key.extra_key, parent, array("i", key.token_ids).tobytes())
            if node is None:
                continue
            taken.add(stored.page)
            grown.append(node)
            self._pages.note(node, key.digest)
            self._pages.put(node, disk.level, stored.page, stored.checksum)
            row += ((node, follower) for follower in followers.pop(key.digest, ()))
        for stored in pages:
            if stored.page not in taken:
                self._pages.free(disk.level, stored.page)
        for node in grown:
            disk.offer(node)
        return len(taken)

    def uses(self) -> tuple[TierUse, ...]:
        return tuple(tier.use() for tier in self.pools)

    # For offloaded requests

    def pages_of(self, tier: Tier) -> int:
        return sum(pool.pool.num_pages for pool in self.pools if pool.tier is tier)

    def num_takeable(self, tier: Tier) -> int:
        pool = self._pages.of(tier)
        return pool.pool.num_pages - len(pool.private)

    def take(self, tier: Tier, needed: int, at_most: int | None = None) -> list[int] | None:
        pool = self._pages.of(tier)
        if needed > self.num_takeable(tier) - self.num_read:
            return None  # to evict what is cached would be in vain
        at_most = needed if at_most is None else at_most
        taken = pool.pool.take(min(at_most, pool.pool.num_free))
        while len(taken) < at_most:
            page = self._stores.take_page(pool.level)
            if page is None:
                break
            taken.append(page)
        if len(taken) < at_most and len(taken) + len(pool.retired) < needed:
            pool.pool.give(taken)
            return None
        while len(taken) < at_most:
            taken.append(pool.retired.pop(0))
        pool.private.update(taken)
        return taken

    def give(self, tier: Tier, pages: Iterable[int]) -> None:
        pool = self._pages.of(tier)
        for page in pages:
            pool.private.remove(page)
            self._pages.free(pool.level, page)

    def store_offloaded(
        self, owner: StoreOwner, index: int, source: int, tier: Tier, page: int, key: PageKey | None
    ) -> None:
        self._stores.add_offloaded(OffloadStore(owner, index, source, self._pages.of(tier).level, page, key))

    def readable(self, nodes: Iterator[Node], tier: Tier) -> list[Node]:
        level, found = self._pages.of(tier).level, []
        for node in nodes:
            if not _is_readable(node, level):
                break
            found.append(node)
        return found

    def read(self, nodes: Sequence[Node], tier: Tier) -> list[int]:
        level, pages = self._pages.of(tier).level, []
        for node in nodes:  # a context of millions of tokens has very many: no call for each
            copies = node.copies
            assert copies is not None, f"{node} was never published"
            if not copies.readers:
                self.num_read += 1
            copies.readers += 1
            pages.append(copies.pages[level])
        return pages

    def unread(self, nodes: Sequence[Node]) -> None:
        for node in reversed(nodes):
            copies = copies_of(node)
            assert copies.readers > 0, f"{node} is not read"
            copies.readers -= 1
            self.num_read -= copies.readers == 0
            self._stores.reader_left(node)

    def failed_to_read(self, tier: Tier, page: int) -> None:
        pool = self._pages.of(tier)
        pool.num_failed_loads += 1
        pool.unreadable.add(page)

    def publish(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier, page: int) -> Node | None:
        pool, parent = self._pages.of(tier), path[-1] if path else None
        if parent is not None and parent.has_left:  # the root stays
            return None
        node = self._pages.tree.child_or_new(parent, key, extra_key)
        copies = self._pages.note(node)
        if copies.pages[pool.level] != NOWHERE or copies.storing[pool.level]:
            return None
        pool.private.remove(page)
        self._pages.put(node, pool.level, page, pool.checksums[page])
        self.read([node], tier)
        return node

    def behind(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier) -> Node | None:
        parent = path[-1] if path else None
        if parent is not None and parent.has_left:  # the root stays
            return None
        node = self._pages.tree.child(parent, key, extra_key)
        return node if node is not None and _is_readable(node, self._pages.of(tier).level) else None


def _is_readable(node: Node, level: int) -> bool:
    """Return whether offloaded requests may read a node on a tier."""
    copies = node.copies
    return copies is not None and copies.pages[level] != NOWHERE and not copies.is_suspect
