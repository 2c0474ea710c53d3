"""Tiers: which pages lie on the host and on the disk as well, and which copies are to be made.

    device   -- store -->   host   -- store -->   disk        by the write policy, or when the tier above is full
    device   <-- load --    host or disk                      for a request that would compute them again

A node of the prefix tree lies on any of them. The rules:

- A copy counts once it has ended well. A page that was stored is known by the checksum its store came back with.
- A load is one affair: its pages belong to nobody else, and nothing of it is seen before all its copies have ended.
  Then the nodes before the first failed one get their pages.
- Each tier gives up what was used least recently, a node after its children; whatever then lies nowhere leaves the tree
  with all below it.
- What is being read is not given up; what left the tree meanwhile is given up when the reading ends.

Copies are planned under two budgets, copies of a step and copies in flight. What does not fit waits, if it is a
load or a page that stays on the device, and else is lost: it will be computed again.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from sluice.kv.flights import Load, LoadedPage, OffloadStore, Store, StoreOwner
from sluice.kv.page_names import digest_of, key_of
from sluice.kv.prefix import Node, PrefixTree
from sluice.kv.tier_copies import NOWHERE, TierCopies
from sluice.kv.tier_pool import STALE, TierPool
from sluice.types import CopyDone, PageCopy, PageKey, StoredPage, Tier, TierLimits, TierUse

SELECTIVE_HITS = 1
"""Times a page was taken from the cache before the policy `selective` stores it."""


class Tiers:
    """The tiers behind the device.

    Args:
        limits: with a tier, at least.
        page_size: tokens.
    """

    def __init__(self, limits: TierLimits, page_size: int) -> None:
        self.limits = limits
        self._page_size = page_size
        sizes = ((Tier.HOST, limits.host_pages), (Tier.DISK, limits.disk_pages))
        self.pools = [TierPool(place, *size) for place, size in enumerate(size for size in sizes if size[1])]
        self._tree: PrefixTree | None = None
        self._copies: list[PageCopy] = []
        """Of the next plan."""
        self._dropped: dict[int, None] = {}
        """Pages of the disk that its index is to forget."""
        self._dropped_again: Sequence[int] = ()
        """The same of a plan that never ran. They ask for no plan of their own, which might fail for ever."""
        self._wanted: deque[tuple[Node, int]] = deque()
        """Nodes to be stored while they are on the device, with the place of the tier."""
        self.loads: list[Load] = []
        """Not over, oldest first."""
        self.tickets: dict[int, Store | OffloadStore | LoadedPage] = {}
        """Copies that were planned and have not ended."""
        self._next_ticket = 0
        self._forgotten = 0
        """Tickets below this may end although nobody waits for them any more."""
        self.private: list[set[int]] = [set() for _ in self.pools]
        """Pages of each tier that belong to no node: those of offloaded requests."""
        self.num_read = 0
        """Nodes that offloaded requests attend to."""
        self._offloaded: deque[OffloadStore] = deque()
        """Stores of offloaded requests, in order."""

    def attach(self, tree: PrefixTree) -> None:
        """The tree whose nodes lie here; once."""
        self._tree = tree

    @property
    def order(self) -> tuple[Tier, ...]:
        return tuple(tier.tier for tier in self.pools)

    @property
    def tree(self) -> PrefixTree:
        assert self._tree is not None, "tiers without a tree"
        return self._tree

    @property
    def has_work(self) -> bool:
        """Something can be told to the runner, now or when copies have ended."""
        return bool(
            self._copies
            or self._dropped
            or self._wanted
            or self._offloaded
            or any(load.begun < len(load.nodes) for load in self.loads)
        )

    @property
    def num_in_flight(self) -> int:
        return len(self.tickets)

    @property
    def num_loading(self) -> int:
        return sum(len(load.pages) for load in self.loads)

    # What the tree tells (prefix.Keeper)

    def published(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, f"{node} has no parent"
        if node.copies is None:
            node.copies = TierCopies(len(self.pools), digest_of(node))
        if self.limits.write_policy == "write-through":
            self._want(node)

    def keeps(self, node: Node) -> bool:
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        if not copies.is_kept and self._is_worth_storing(copies):
            self._store(node, 0, Tier.DEVICE, node.page)
        if not copies.is_kept:
            self.pools[0].num_lost += 1
        return copies.is_kept

    def removed(self, node: Node) -> None:
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        copies.gone = True
        for place, page in enumerate(copies.pages):
            if copies.storing[place] or (page != NOWHERE and copies.is_read):
                self._child_left(node, place)  # the page itself is given up when it has been written, or read
            elif page != NOWHERE:
                self._give_up(node, place)

    def suspected(self, node: Node) -> None:
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        copies.is_suspect = True
        self._unread(node)

    # What the manager asks

    def used(self, path: Sequence[Node]) -> None:
        if self.limits.write_policy != "selective":
            return
        for node in path:
            assert node.copies is not None, f"{node} was never published"
            node.copies.hits += 1
            if node.copies.hits == SELECTIVE_HITS:
                self._want(node)

    def loadable(self, nodes: Iterator[Node]) -> list[Node]:
        """As many of these nodes, from the first one on, as can be loaded."""
        found: list[Node] = []
        for node in nodes:
            if node.copies is None or node.copies.is_suspect or not node.copies.is_stored:
                break
            found.append(node)
        return found if len(found) >= self.limits.load_back_pages else []

    def is_loading(self, nodes: Iterator[Node]) -> bool:
        """The first of these nodes is on its way to the device."""
        node = next(nodes, None)
        return node is not None and node.copies is not None and node.copies.is_loading

    def hold(self, nodes: Sequence[Node]) -> None:
        """Nodes that are about to be loaded: nobody may give them up."""
        for node in nodes:
            assert node.copies is not None and not node.copies.is_loading, f"{node} is loaded twice"
            node.copies.is_loading = True

    def load(self, nodes: list[Node], pages: list[int]) -> Load:
        """Bring held nodes to pages that nobody else has."""
        assert len(nodes) == len(pages), f"{len(pages)} pages for {len(nodes)} nodes"
        load = Load(nodes, pages, [self._source(node) for node in nodes])
        self.loads.append(load)
        return load

    def cancel(self, load: Load) -> list[int]:
        """Nobody waits for it any more: what was not begun is left. Returns pages that are free now."""
        return self._shorten(load) + self._end_load(load)

    def take_copies(self) -> tuple[tuple[PageCopy, ...], tuple[int, ...]]:
        """What the plan that was just made is to copy, and to forget on the disk, as far as the budgets let it."""
        self._begin_loads()
        self._begin_offloaded()
        self._begin_stores()
        copies, self._copies = tuple(self._copies), []
        stored = {copy.target_page for copy in copies if copy.target is Tier.DISK}
        dropped = tuple(page for page in dict.fromkeys((*self._dropped_again, *self._dropped)) if page not in stored)
        self._dropped, self._dropped_again = {}, ()
        return copies, dropped

    def forget_again(self, dropped: Sequence[int]) -> None:
        """See `LowerTiers.forget_again`."""
        self._dropped_again = dropped

    def ended(self, done: CopyDone) -> tuple[Load | None, list[int]]:
        """A copy ended. Returns the load that is over with it, if one is, and pages that are free now."""
        copy = self.tickets.pop(done.ticket, None)
        if copy is None:
            assert done.ticket < self._forgotten, f"nobody planned {done}, or it has ended before"
            return None, []
        if isinstance(copy, Store):
            self._stored(copy, done)
            return None, []
        if isinstance(copy, OffloadStore):
            self._offload_stored(copy, done)
            return None, []
        load, index = copy.load, copy.index
        load.open -= 1
        tier = self.pools[load.sources[index][0]]
        if done.error is None:
            tier.num_loaded += 1
            return self._over(load, [])
        tier.num_failed_loads += 1
        load.failed.add(index)
        return self._over(load, self._shorten(load))

    def forget_flights(self) -> list[int]:
        """The runner is gone, and with it all that was in flight. Returns pages that are free now."""
        pages: list[int] = []
        self._forgotten = self._next_ticket
        self._copies.clear()
        for ticket in list(self.tickets):
            copy = self.tickets.pop(ticket)
            if isinstance(copy, Store):
                self._stored(copy, CopyDone(ticket, error="lost"))
            elif isinstance(copy, OffloadStore):
                self._offload_stored(copy, CopyDone(ticket, error="lost"))
            else:
                copy.load.open -= 1
                copy.load.begun = min(copy.load.begun, copy.index)
        for load in list(self.loads):
            pages += self.cancel(load)
        return pages

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Grow the tree from what the disk held when it was opened. Returns how many pages were taken over; whatever
        has no page before it, or is there twice, is to be forgotten.

        Raises:
            ValueError: there is no disk tier, or a page that it has not, or that holds another number of tokens.
        """
        disk = self.pools[-1]
        if disk.tier is not Tier.DISK:
            raise ValueError(f"{len(pages)} pages of a disk tier, but there is none")
        for page in pages:
            if not 0 <= page.page < disk.pool.num_pages or len(page.key.token_ids) != self._page_size:
                raise ValueError(
                    f"page {page.page} with {len(page.key.token_ids)} tokens on a disk tier of {disk.pool.num_pages}"
                    f" pages of {self._page_size}"
                )
        disk.pool.take_these(page.page for page in pages)
        followers: dict[bytes, list[StoredPage]] = {}
        for page in pages:
            followers.setdefault(page.key.parent, []).append(page)
        taken: set[int] = set()
        grown: list[Node] = []
        row: list[tuple[Node | None, StoredPage]] = [(None, page) for page in followers.pop(b"", ())]
        for parent, page in row:
            node = self.tree.restored(page.key.extra_key, parent, array("i", page.key.token_ids).tobytes())
            if node is None:
                continue
            taken.add(page.page)
            grown.append(node)
            node.copies = TierCopies(len(self.pools), page.key.digest)
            self._put(node, disk.place, page.page, page.checksum)
            row += ((node, follower) for follower in followers.pop(page.key.digest, ()))
        for page in pages:
            if page.page not in taken:
                disk.pool.give([page.page])
                self._dropped[page.page] = None
        for node in grown:
            disk.offer(node)
        return len(taken)

    def take(self, tier: Tier, count: int) -> list[int] | None:
        """Pages of a tier for a request that keeps its KV there: all of them, or None. Others' give way, unless such
        requests hold so many that it would be in vain."""
        slots = self._of(tier)
        taken: list[int] = []
        if count > slots.pool.num_pages - len(self.private[slots.place]) - self.num_read:
            return None
        while len(taken) < count:
            page = self._page(slots.place)
            if page is None:
                slots.pool.give(taken)
                return None
            taken.append(page)
        self.private[slots.place].update(taken)
        return taken

    def give(self, tier: Tier, pages: Iterable[int]) -> None:
        """Give pages of `take` back."""
        place = self._of(tier).place
        for page in pages:
            self.private[place].remove(page)
            self._free(place, page)

    def readable(self, nodes: Iterator[Node], tier: Tier) -> list[Node]:
        """As many of these nodes, from the first one on, as lie on a tier."""
        place, found = self._of(tier).place, []
        for node in nodes:
            if not _is_readable(node, place):
                break
            found.append(node)
        return found

    def read(self, nodes: Sequence[Node], tier: Tier) -> list[int]:
        """Somebody attends to these nodes where they lie, until `unread`. Returns their pages."""
        place, pages = self._of(tier).place, []
        for node in nodes:
            assert node.copies is not None, f"{node} was never published"
            self._read(node.copies)
            pages.append(node.copies.pages[place])
        return pages

    def unread(self, nodes: Sequence[Node]) -> None:
        """One of those who attend to these nodes does so no more."""
        for node in reversed(nodes):
            assert node.copies is not None and node.copies.readers > 0, f"nobody reads {node}"
            node.copies.readers -= 1
            self.num_read -= node.copies.readers == 0
            self._unread(node)

    def publish(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier, page: int) -> Node | None:
        """Make a private page the node behind a path that is read; whoever had it reads it from now on.

        Returns None if the path has left the tree, or a node of these tokens lies on the tier already.
        """
        place, parent = self._of(tier).place, path[-1] if path else None
        if _has_left(parent):
            return None
        node = self.tree.child_or_new(parent, key, extra_key)
        if node.copies is None:
            node.copies = TierCopies(len(self.pools), digest_of(node))
        copies = node.copies
        if copies.pages[place] != NOWHERE or copies.storing[place]:
            return None
        self.private[place].remove(page)
        self._put(node, place, page, self.pools[place].checksums[page])
        self._read(copies)
        return node

    def _read(self, copies: TierCopies) -> None:
        self.num_read += copies.readers == 0
        copies.readers += 1

    def behind(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier) -> Node | None:
        """The node of these tokens behind a path that is read, if it lies on the tier."""
        place, parent = self._of(tier).place, path[-1] if path else None
        if _has_left(parent):
            return None
        node = self.tree.child(parent, key, extra_key)
        return node if node is not None and _is_readable(node, place) else None

    def pages_of(self, tier: Tier) -> int:
        """How many pages a tier has."""
        return sum(slots.pool.num_pages for slots in self.pools if slots.tier is tier)

    def store_offloaded(
        self, owner: StoreOwner, index: int, source: int, tier: Tier, page: int, key: PageKey | None
    ) -> None:
        """Copy a page of the device to where a offloaded request keeps it, as soon as the budgets let it."""
        self._offloaded.append(OffloadStore(owner, index, source, self._of(tier).place, page, key))

    def uses(self) -> tuple[TierUse, ...]:
        return tuple(tier.use() for tier in self.pools)

    # Copies down

    def _want(self, node: Node) -> None:
        """Store it everywhere it is not, when there is room in a plan."""
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        if len(self._wanted) > STALE * len(self.pools) * self.tree.num_pages:
            self._wanted = deque(each for each in self._wanted if self._lacks(*each))
        for place in range(len(self.pools)):
            if self._lacks(node, place):
                self._wanted.append((node, place))

    def _lacks(self, node: Node, place: int) -> bool:
        """It is on the device, and neither on that tier nor on the way there."""
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        return node.page >= 0 and copies.pages[place] == NOWHERE and not copies.storing[place]

    def _is_worth_storing(self, copies: TierCopies) -> bool:
        return self.limits.write_policy != "selective" or copies.hits >= SELECTIVE_HITS

    def _begin_stores(self) -> None:
        while self._wanted and self._has_room():
            node, place = self._wanted.popleft()
            if self._lacks(node, place):
                self._store(node, place, Tier.DEVICE, node.page)

    def _begin_offloaded(self) -> None:
        while self._offloaded and (self._offloaded[0].owner.is_closed or self._has_room()):
            store = self._offloaded.popleft()
            if store.owner.is_closed:
                continue
            store.owner.sending.add(store.index)
            tier = self.pools[store.place].tier
            key = store.key if tier is Tier.DISK else None
            self._copies.append(PageCopy(self._ticket(store), Tier.DEVICE, store.source, tier, store.page, 0, key))

    def _offload_stored(self, store: OffloadStore, done: CopyDone) -> None:
        slots = self.pools[store.place]
        if done.error is None:
            slots.num_stored += 1
        else:
            slots.num_failed_stores += 1
        slots.checksums[store.page] = done.checksum
        store.owner.ended(store.index, done.error)
        if store.owner.is_closed:  # it was kept, since the copy might have overwritten what came there next
            self.give(slots.tier, [store.page])

    def _store(self, node: Node, place: int, source: Tier, source_page: int) -> None:
        """Plan a copy to a tier, if there is room for it in the plan and on the tier."""
        copies, parent = node.copies, node.parent
        assert copies is not None and parent is not None, f"{node} was never published"
        if not self._has_room():
            return
        if parent.copies is not None:
            parent.copies.children[place] += 1  # now: its parent may not make room for it
        page = self._page(place)
        if page is None or copies.gone or not self._has_room():  # to make room others may have been moved
            if page is not None:
                self._free(place, page)
            self._child_left(node, place)
            return
        copies.storing[place] = True
        target = self.pools[place].tier
        key = key_of(node) if target is Tier.DISK else None
        copy = PageCopy(self._ticket(Store(node, place, page)), source, source_page, target, page, 0, key)
        self._copies.append(copy)

    def _stored(self, store: Store, done: CopyDone) -> None:
        copies, tier = store.node.copies, self.pools[store.tier]
        assert copies is not None, f"{store.node} was never published"
        copies.storing[tier.place] = False
        if done.error is None:
            tier.num_stored += 1
        else:
            tier.num_failed_stores += 1
        if done.error is None and not copies.gone:
            self._child_left(store.node, tier.place)  # `_put` counts it again
            self._put(store.node, tier.place, store.page, done.checksum)
            tier.offer(store.node)
            return
        self._free(tier.place, store.page)
        if not copies.gone:
            self._child_left(store.node, tier.place)
            self._drop_if_nowhere(store.node)

    def _put(self, node: Node, place: int, page: int, checksum: int) -> None:
        """A node has a copy."""
        assert node.copies is not None and node.parent is not None, f"{node} was never published"
        node.copies.pages[place] = page
        self.pools[place].checksums[page] = checksum
        if node.parent.copies is not None:
            node.parent.copies.children[place] += 1

    def _page(self, place: int) -> int | None:
        """A free page of a tier, if need be of whoever was used least recently."""
        tier = self.pools[place]
        if not tier.pool.num_free:
            node = tier.least_recent()
            if node is None:
                return None
            self._evict(node, place)
        return tier.pool.take(1)[0] if tier.pool.num_free else None

    def _evict(self, node: Node, place: int) -> None:
        """Give up a copy, moving it to the next tier if it is the only one."""
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        is_last = node.page < 0 and sum(page != NOWHERE for page in copies.pages) + sum(copies.storing) == 1
        if is_last and place + 1 < len(self.pools):
            self._store(node, place + 1, self.pools[place].tier, copies.pages[place])
        if not copies.gone:
            self._give_up(node, place)
            self._drop_if_nowhere(node)

    def _give_up(self, node: Node, place: int) -> None:
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        page, copies.pages[place] = copies.pages[place], NOWHERE
        self._free(place, page)
        self._child_left(node, place)

    def _free(self, place: int, page: int) -> None:
        self.pools[place].pool.give([page])
        if self.pools[place].tier is Tier.DISK:
            self._dropped[page] = None

    def _child_left(self, node: Node, place: int) -> None:
        """A node has no copy on a tier any more, nor on the way there."""
        parent = node.parent
        assert parent is not None, f"{node} has no parent"
        if parent.copies is not None:
            parent.copies.children[place] -= 1
            self.pools[place].offer(parent)

    def _drop_if_nowhere(self, node: Node) -> None:
        assert node.copies is not None, f"{node} was never published"
        if node.page < 0 and not node.copies.is_kept:
            self.pools[0].num_lost += 1
            pages = self.tree.drop(node)
            assert not pages, f"pages {pages} lay behind {node}, which has none"

    # Copies up

    def _source(self, node: Node) -> tuple[int, int]:
        """The fastest tier that holds it, and where."""
        assert node.copies is not None, f"{node} was never published"
        return next((place, page) for place, page in enumerate(node.copies.pages) if page != NOWHERE)

    def _begin_loads(self) -> None:
        """Loads go before stores that can wait, but leave these a quarter of the plan."""
        kept = min(len(self._wanted), self.limits.copies_per_step // 4)
        for load in self.loads:
            while load.begun < len(load.nodes) and self._has_room(kept):
                index = load.begun
                place, page = load.sources[index]
                tier = self.pools[place]
                ticket = self._ticket(LoadedPage(load, index))
                checksum = tier.checksums[page]
                self._copies.append(PageCopy(ticket, tier.tier, page, Tier.DEVICE, load.pages[index], checksum))
                load.begun += 1
                load.open += 1

    def _shorten(self, load: Load) -> list[int]:
        """Begin nothing more of a load. Returns the pages it does not need then."""
        nodes, pages = load.nodes[load.begun :], load.pages[load.begun :]
        del load.nodes[load.begun :], load.pages[load.begun :], load.sources[load.begun :]
        self._let_go(nodes)
        return pages

    def _let_go(self, nodes: Sequence[Node]) -> None:
        """Nobody reads these nodes any more."""
        for node in nodes:
            copies = node.copies
            assert copies is not None, f"{node} was never published"
            copies.is_loading = False
            self._unread(node)

    def _unread(self, node: Node) -> None:
        """One who read it does so no more."""
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        if copies.is_read:
            return
        for place, page in enumerate(copies.pages):
            if copies.gone and page != NOWHERE:
                copies.pages[place] = NOWHERE
                self._free(place, page)
            elif copies.is_suspect and page != NOWHERE:
                self._give_up(node, place)
            self.pools[place].offer(node)
        if copies.is_suspect and not copies.gone:
            copies.is_suspect = False
            self._drop_if_nowhere(node)
            if self.limits.write_policy != "write-back" and self._is_worth_storing(copies):
                self._want(node)

    def _over(self, load: Load, pages: list[int]) -> tuple[Load | None, list[int]]:
        if load.open or load.begun < len(load.nodes):
            return None, pages
        return load, pages + self._end_load(load)

    def _end_load(self, load: Load) -> list[int]:
        """Nothing of it is in flight: give its nodes their pages. Returns the pages that nobody needs."""
        if load.open or load.is_over:
            return []
        load.is_over = True
        self.loads.remove(load)
        good = min(load.failed, default=len(load.nodes))
        self._let_go(load.nodes)
        free = load.pages[good:]
        last: Node | None = None
        for node, page in zip(load.nodes[:good], load.pages[:good], strict=True):
            assert node.copies is not None, f"{node} was never published"
            if node.page >= 0 or node.copies.gone or not self.tree.is_on_device(node.parent):
                free.append(page)  # somebody has computed it meanwhile, or what it follows is gone
            else:
                last = self.tree.fill(node, page)
        if last is not None:
            self.tree.offer(last)
        for index in sorted(load.failed, reverse=True):
            self._spoiled(load.nodes[index], *load.sources[index])
        return free

    def _spoiled(self, node: Node, place: int, page: int) -> None:
        """A copy could not be read: it is none."""
        copies = node.copies
        assert copies is not None, f"{node} was never published"
        if copies.gone or copies.pages[place] != page:
            return
        if copies.readers:
            copies.is_suspect = True
            return
        self._give_up(node, place)
        self._drop_if_nowhere(node)

    # Names

    def _has_room(self, kept: int = 0) -> bool:
        limits = self.limits
        return len(self._copies) + kept < limits.copies_per_step and len(self.tickets) < limits.copies_in_flight

    def _ticket(self, copy: Store | OffloadStore | LoadedPage) -> int:
        ticket = self._next_ticket
        self._next_ticket += 1
        self.tickets[ticket] = copy
        return ticket

    def _of(self, tier: Tier) -> TierPool:
        return next(slots for slots in self.pools if slots.tier is tier)


def _has_left(parent: Node | None) -> bool:
    """A page was read behind it, and it is in the tree no more; None is the root, which stays."""
    return parent is not None and (parent.copies is None or parent.copies.gone)


def _is_readable(node: Node, place: int) -> bool:
    """Offloaded requests may attend to it on a tier."""
    copies = node.copies
    return copies is not None and copies.pages[place] != NOWHERE and not copies.is_suspect
