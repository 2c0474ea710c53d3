"""Loads: copies up, from a tier to the device."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.flights import Flights, LoadedPage, PageLoad
from sluice.kv.nodes import NOWHERE, Node, copies_of
from sluice.kv.stores import Stores
from sluice.kv.tier_pool import TierPages
from sluice.types import Tier, TierLimits


class Loads:
    """The loads that are not over, oldest first."""

    def __init__(self, limits: TierLimits, pages: TierPages, flights: Flights, stores: Stores) -> None:
        self._limits = limits
        self._pages = pages
        self._flights = flights
        self._stores = stores
        self.open: list[PageLoad] = []

    @property
    def has_work(self) -> bool:
        """Whether a copy of a load waits for room in a plan."""
        return any(load.begun < len(load.nodes) for load in self.open)

    def loadable(self, node: Node) -> bool:
        """Return whether a node can be loaded."""
        return node.copies is not None and not node.copies.is_suspect and node.copies.is_stored

    def hold(self, nodes: Sequence[Node]) -> None:
        """Keep the copies of nodes that are about to be loaded."""
        for node in nodes:
            copies = copies_of(node)
            assert not copies.is_loading, f"{node} is loaded twice"
            copies.is_loading = True

    def add(self, nodes: list[Node], pages: list[int]) -> PageLoad:
        """Begin to load held nodes into pages that have no other owner."""
        assert len(nodes) == len(pages), f"{len(pages)} pages for {len(nodes)} nodes"
        load = PageLoad(nodes, pages, [_source(node) for node in nodes])
        self.open.append(load)
        return load

    def plan(self) -> None:
        """Plan the copies that wait, as far as the budgets let it. Loads go before stores that can wait, but leave
        these a quarter of the plan."""
        kept = min(self._stores.num_wanted, self._limits.copies_per_step // 4)
        for load in self.open:
            while load.begun < len(load.nodes) and self._flights.has_room(kept):
                index = load.begun
                level, page = load.sources[index]
                tier = self._pages.pools[level]
                checksum = tier.checksums[page]
                target = (Tier.DEVICE, load.pages[index])
                self._flights.plan(LoadedPage(load, index), (tier.tier, page), target, checksum)
                load.begun += 1
                load.open += 1

    def ended(self, copy: LoadedPage, error: str | None) -> tuple[PageLoad | None, list[int]]:
        """Note that a copy has ended. Returns its load if that is over with it, and pages that are free now."""
        load = copy.load
        load.open -= 1
        tier = self._pages.pools[load.sources[copy.index][0]]
        if error is None:
            tier.num_loaded += 1
            return self._over(load, [])
        tier.num_failed_loads += 1
        load.failed.add(copy.index)
        return self._over(load, self._shorten(load))

    def lost(self, copy: LoadedPage) -> None:
        """Note that a copy will never end."""
        copy.load.open -= 1
        copy.load.begun = min(copy.load.begun, copy.index)

    def cancel(self, load: PageLoad) -> list[int]:
        """Give up what a load has not begun. Returns pages that are free now."""
        return self._shorten(load) + self._end(load)

    def _shorten(self, load: PageLoad) -> list[int]:
        """Begin nothing more of a load. Returns the pages it does not need then."""
        nodes, pages, sources = load.nodes[load.begun :], load.pages[load.begun :], load.sources[load.begun :]
        del load.nodes[load.begun :], load.pages[load.begun :], load.sources[load.begun :]
        self._let_go(nodes)
        for index in sorted((each for each in load.failed if each >= load.begun), reverse=True):  # `lost` went back
            load.failed.remove(index)
            self._give_up_unreadable(nodes[index - load.begun], *sources[index - load.begun])
        return pages

    def _over(self, load: PageLoad, pages: list[int]) -> tuple[PageLoad | None, list[int]]:
        if load.open or load.begun < len(load.nodes):
            return None, pages
        return load, pages + self._end(load)

    def _end(self, load: PageLoad) -> list[int]:
        """Give the nodes of a load their pages, if nothing of it is in flight. Nodes behind one that failed get none.
        Returns the pages that are not needed."""
        if load.open or load.is_over:
            return []
        load.is_over = True
        self.open.remove(load)
        good = min(load.failed, default=len(load.nodes))
        self._let_go(load.nodes)
        free = load.pages[good:]
        tree, last = self._pages.tree, None
        for node, page in zip(load.nodes[:good], load.pages[:good], strict=True):
            if node.page >= 0 or copies_of(node).gone or not tree.is_on_device(node.parent):
                free.append(page)  # it was computed meanwhile, or what it follows is gone
            else:
                last = tree.fill(node, page)
        if last is not None:
            tree.offer(last)
        for index in sorted(load.failed, reverse=True):
            self._give_up_unreadable(load.nodes[index], *load.sources[index])
        return free

    def _let_go(self, nodes: Sequence[Node]) -> None:
        """Release the copies of these nodes."""
        for node in nodes:
            copies_of(node).is_loading = False
            self._stores.reader_left(node)

    def _give_up_unreadable(self, node: Node, level: int, page: int) -> None:
        """Give up a copy that could not be read, once no offloaded request reads it."""
        copies = copies_of(node)
        if copies.gone or copies.pages[level] != page:
            return
        if copies.readers:
            copies.is_suspect = True
            return
        self._pages.give_up(node, level)
        self._pages.drop_if_nowhere(node)


def _source(node: Node) -> tuple[int, int]:
    """Return the level of the fastest tier that holds a node, and its page there."""
    return next((level, page) for level, page in enumerate(copies_of(node).pages) if page != NOWHERE)
