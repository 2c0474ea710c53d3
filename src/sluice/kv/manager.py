"""KVManager: which pages a request holds, from the moment it gets a slot until it leaves it.

It knows token ids and pages, not requests: a request is a `Lease` here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.flights import PageLoad
from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.nodes import Node
from sluice.kv.offload import OffloadPool
from sluice.kv.pages import PagePool
from sluice.kv.prefix_cache import PrefixTree
from sluice.kv.prefix_cache_base import PrefixCache
from sluice.kv.records import Records
from sluice.kv.tiers import Tiers
from sluice.kv.usable import usable
from sluice.kv.windows import WindowPages, WindowRow
from sluice.types import CachedTokens, CopyDone, OffloadLimits, StateLimits, Tier, TierLimits, WindowLimits


class Lease(Protocol):
    """The pages that one request holds while it has a slot.

    A lease has a kind, which `scheduler/admission.py` chooses when the request gets its slot:

        ResidentLease   all of the context is on the device; a cached prefix may be loaded from a tier first
        OffloadLease    the context is on a tier, and a window of it on the device

    The scheduler asks the lease and never its kind. A new kind implements this protocol.
    """

    path: list[Node]
    """Nodes of the prefix tree that hold the beginning of the context."""
    cached: CachedTokens
    """Tokens of the context that were found in the cache, and the tiers they came from."""

    @property
    def capacity(self) -> int:
        """Tokens of the context that have a page."""
        ...

    @property
    def num_loading(self) -> int:
        """Pages that are being loaded for this lease."""
        ...

    def missing(self, num_tokens: int) -> int:
        """Return the pages of the device that are still needed to hold `num_tokens` tokens."""
        ...

    def shrink(self, num_tokens: int) -> None:
        """Give back the pages of the device that are not needed to hold `num_tokens` tokens."""
        ...

    def reclaimable(self) -> int:
        """Return the pages of the device that become available when this lease alone is released."""
        ...

    def publish(self, tokens: array[int], computed: int) -> None:
        """Let other requests use the full pages among the first `computed` tokens."""
        ...

    def release(self, tokens: array[int], computed: int) -> None:
        """Give all pages back. Full pages among the first `computed` tokens stay cached."""
        ...

    def discard(self) -> None:
        """Give all pages back and keep none of them cached: the request failed, and its KV may be the cause."""
        ...


class ResidentLease:
    """The pages of a request whose context is on the device, in row order.

        pages   [ 0 ........... len(path) ................ len(pages) )
                  published: the        private: written by this
                  tree owns them        request, full or not

    A full page is private until its step is committed, and stays private if another request has published the same
    tokens first.

    Args:
        kv: where the pages come from.
        path: cached nodes that are held already.
    """

    __slots__ = ("_kv", "_twins", "cached", "capacity", "extra_key", "load", "pages", "path", "window")

    def __init__(self, kv: KVManager, path: list[Node], extra_key: str) -> None:
        self._kv = kv
        self.path = path
        self.extra_key = extra_key
        self.pages = [node.page for node in path]
        self.capacity = len(path) * kv.page_size
        self.cached = CachedTokens(self.capacity)
        self.load: PageLoad | None = None
        """Nodes on their way to the device, which are to lengthen the path. None: the lease is not loading."""
        self.window = None if kv.windows is None else WindowRow(kv.windows, path)
        """Its pages in layers with a window, as many as `pages`; None: all layers have the same pages."""
        self._twins: list[Node] = []
        """Nodes with its tokens behind the path, which others have published, as they were when last looked for."""

    @property
    def private_pages(self) -> list[int]:
        """Pages that this lease alone holds."""
        return self.pages[len(self.path) :]

    @property
    def num_loading(self) -> int:
        return 0 if self.load is None else len(self.load.pages)

    def missing(self, num_tokens: int) -> int:
        """Return the pages still needed to hold `num_tokens` tokens. Pages that are being loaded are there already."""
        coming = 0 if self.load is None else len(self.load.pages)
        return max(0, -(-num_tokens // self._kv.page_size) - len(self.pages) - coming)

    def extend(self, num_tokens: int) -> tuple[int, ...]:
        """Add pages to hold `num_tokens` tokens, evicting cached ones if needed. As many as are `missing` must be
        available.

        Returns:
            The pages added.
        """
        assert self.load is None, f"pages for {num_tokens} tokens while others are loaded"
        added = self._kv.take(self.missing(num_tokens))
        self.pages += added
        self.capacity = len(self.pages) * self._kv.page_size
        if self.window is not None:
            self.window.extend(len(self.pages))
        return tuple(added)

    def new_window_pages(self, count: int, *, is_new: bool) -> tuple[int, ...]:
        """Return what a chunk brings of the pages of layers with a window.

        Args:
            count: pages that were just added.
            is_new: whether no chunk has brought any yet.
        """
        return () if self.window is None else self.window.new_pages(count, is_new=is_new)

    def shrink(self, num_tokens: int) -> None:
        held = self._kv.pages_for(num_tokens)
        if held < len(self.pages):
            self._kv.pool.give(self.pages[held:])
            del self.pages[held:]
            self.capacity = held * self._kv.page_size
            if self.window is not None:
                self.window.shrink(held)

    def publish(self, tokens: array[int], computed: int) -> None:
        full = computed // self._kv.page_size
        start = len(self.path)
        if full > start:
            self._kv.tree.publish(self.path, tokens, self.pages, full, self.extra_key)
            if self.window is not None:
                self.window.published(self.path, start)

    def leave(self, tokens: array[int], computed: int) -> None:
        """Give up the pages of layers with a window that no query from position `computed` on sees. No later chunk may
        begin before it."""
        if self.window is not None and self.window.has_to_leave(computed):
            self.window.leave(computed, self.path, self._found(tokens, max(0, computed - self.window.reach)))

    def _found(self, tokens: array[int], computed: int) -> list[Node]:
        """Return the nodes with the tokens of the full pages among the first `computed` ones."""
        if computed // self._kv.page_size <= len(self.path):
            return self.path
        if len(self._twins) < len(self.path):
            self._twins = list(self.path)
        self._kv.tree.match(self._twins, tokens, computed, self.extra_key)
        return self._twins

    def start_load(self, nodes: list[Node]) -> None:
        """Begin to load the nodes that follow the path. As many pages must be available."""
        kv = self._kv
        kv.tiers.hold(nodes)  # first: eviction may look for room on their tier
        self.load = kv.tiers.load(nodes, kv.take(len(nodes)))

    def end_load(self) -> None:
        """Hold the nodes that the load, which is over, brought to the device."""
        assert self.load is not None, "nothing was loaded"
        load, self.load = self.load, None
        come = list(takewhile(lambda node: node.page >= 0, load.nodes))
        self._kv.tree.lock(come)
        self.path += come
        self.pages += [node.page for node in come]
        size, order = self._kv.page_size, self._kv.tiers.order
        self.capacity = len(self.pages) * size
        on_host = sum(order[level] is Tier.HOST for level, _ in load.sources[: len(come)])
        self.cached = CachedTokens(self.capacity, on_host * size, (len(come) - on_host) * size)

    def reclaimable(self) -> int:
        """Return the pages that become available when this lease alone is released. Pages that copies are on their way
        to are not among them."""
        not_begun = 0 if self.load is None else len(self.load.pages) - self.load.begun
        return len(self.private_pages) + sum(node.refs == 1 for node in self.path) + not_begun

    def release(self, tokens: array[int], computed: int) -> None:
        """Give all pages back. Full pages among the first `computed` tokens stay cached, unless the same tokens are
        cached already."""
        self._cancel_load()
        tree, count = self._kv.tree, computed // self._kv.page_size
        self._kv.pool.give(tree.adopt(self.path, tokens, self.pages, count, self.extra_key))
        if self.window is not None:
            self.window.release(self.path, self._found(tokens, computed))
        tree.unlock(self.path)
        self.path, self.pages = [], []

    def discard(self) -> None:
        self._cancel_load()
        pool, tree = self._kv.pool, self._kv.tree
        pool.give(self.private_pages)
        if self.window is not None:
            self.window.release(self.path, (), ends=False)
        tree.unlock(self.path)
        pool.give(tree.forget(self.path))
        self.path, self.pages = [], []

    def _cancel_load(self) -> None:
        if self.load is not None:
            load, self.load = self.load, None
            self._kv.pool.give(self._kv.tiers.cancel(load))


class KVManager:
    """The pages of the device, the prefix cache and the tiers behind the device.

    Args:
        num_pages: pages of the device.
        page_size: tokens of a page.
        prefix_caching: whether computed pages are kept for other requests.
        tiers: sizes of the tiers behind the device.
        offload: how contexts longer than the device are held. None: such contexts are refused.
        events: receives what the prefix cache stores and gives up.
        windows: the pages of layers with a window; None: all layers have the same pages.
        states: of a model whose layers have recurrent states; None: they have none. Without records nothing is cached.

    Raises:
        ValueError: no pages, pages of no tokens, or tiers behind a device with recurrent states, or whose layers have
            pages of their own.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        prefix_caching: bool = True,
        tiers: TierLimits | None = None,
        offload: OffloadLimits | None = None,
        events: NoEvents = NO_EVENTS,
        windows: WindowLimits | None = None,
        states: StateLimits | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        has_tiers = offload is not None or (tiers is not None and (tiers.host_pages or tiers.disk_pages))
        if windows is not None and has_tiers:
            raise ValueError(f"layers with a window of {windows.length} have pages of their own, and there are tiers")
        if states is not None:
            if has_tiers:
                raise ValueError("there are tiers, which hold no recurrent states")
            prefix_caching = prefix_caching and states.num_records > 0
        self.page_size = page_size
        self.events = events
        self.pool = PagePool(num_pages)
        self.windows = None if windows is None else WindowPages(windows, page_size)
        """The pages of layers with a window; None: all layers have the same pages."""
        self.disabled_tiers = () if tiers is None else tiers.disabled
        """Tiers that an engine before had, and that could not be opened again."""
        self._least_loaded = 0 if tiers is None else tiers.load_back_pages
        self.tiers: LowerTiers = LowerTiers()
        if (prefix_caching or offload is not None) and tiers is not None and (tiers.host_pages or tiers.disk_pages):
            self.tiers = Tiers(tiers, page_size, events)
        self.records = Records(states, page_size) if states is not None and prefix_caching else None
        """Records of recurrent states, which nodes of the prefix cache have; None: there are none."""
        self.tree: PrefixCache = PrefixCache()
        if prefix_caching:
            tree = self.tree = PrefixTree(page_size, self.tiers, events, self.windows, self.records)
            self.tiers.attach(tree)
        self._offload = (
            None if offload is None else OffloadPool(offload, self.tiers, self.tree, page_size, self.pool, self.take)
        )

    @property
    def num_pages(self) -> int:
        """Pages of the device."""
        return self.pool.num_pages

    @property
    def can_offload(self) -> bool:
        """Whether contexts longer than the device are served."""
        return self._offload is not None

    @property
    def offload(self) -> OffloadPool:
        """The pages of offloaded requests; only if `can_offload`."""
        assert self._offload is not None, "contexts longer than the device are refused"
        return self._offload

    @property
    def is_opening(self) -> bool:
        """Whether an offloaded request is getting its pages, or may get them once others are given back."""
        return self._offload is not None and (self._offload.opening is not None or bool(self._offload.closing))

    @property
    def num_window_pages(self) -> int:
        """Pages of the device that offloaded requests hold."""
        return 0 if self._offload is None else self._offload.num_window_pages

    @property
    def available(self) -> int:
        """Pages that can be taken now: free, or cached and held by no request."""
        return self.pool.num_free + self.tree.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Return the pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """Take `count` pages, evicting cached ones if needed; as many must be available."""
        if count > self.pool.num_free:
            self.pool.give(self.tree.evict(count - self.pool.num_free))
        return self.pool.take(count)

    def match(self, tokens: array[int], limit: int, extra_key: str, path: list[Node] | None = None) -> list[Node]:
        """Find the cached pages equal to the beginning of `tokens`, at most `limit` tokens. They are not held.

        Args:
            path: what an earlier match of the same tokens found; it is brought up to date and returned.
        """
        path = [] if path is None else path
        self.tree.match(path, tokens, limit, extra_key)
        return path

    def usable(self, path: Sequence[Node]) -> int:
        """Return how many nodes of a matched path a request can take; behind them it goes on. The answer for a path
        stays the same until `usable_version` changes."""
        if self.windows is None and self.records is None:
            return len(path)
        window_pages = 0 if self.windows is None else self.windows.needed
        record_every = 0 if self.records is None else self.records.grid // self.page_size
        return usable(path, window_pages, record_every=record_every)

    @property
    def usable_version(self) -> int:
        """Grows whenever a node gets or loses a record or a page of windows."""
        windows = 0 if self.windows is None else self.windows.version
        return windows if self.records is None else windows + self.records.version

    def next_page(self, tokens: array[int], path: Sequence[Node], count: int, extra_key: str) -> tuple[object, ...]:
        """Return a name for the first page of `tokens` behind the first `count` nodes of `path`. Equal names mean equal
        tokens from the beginning on."""
        size, start = self.page_size, count * self.page_size
        return (extra_key, path[count - 1] if count else None, tokens[start : start + size].tobytes())

    def acquire(self, path: Sequence[Node], extra_key: str) -> ResidentLease:
        """Hold a matched path: its pages can no longer be evicted."""
        self.tree.lock(path)
        self.tiers.used(path)
        return ResidentLease(self, list(path), extra_key)

    def loadable(self, tokens: array[int], path: Sequence[Node], limit: int, extra_key: str) -> list[Node]:
        """Return the nodes behind a path that was just matched that are worth loading, at most up to `limit` tokens."""
        return self.tiers.loadable(self.tree.match_below(path, tokens, limit, extra_key))

    def num_loadable(self, below: int) -> int:
        """Return how many of `below` nodes behind a path would be loaded: all, or none if they are too few."""
        return below if below >= self._least_loaded else 0

    def is_loading(self, tokens: array[int], path: Sequence[Node], limit: int, extra_key: str) -> bool:
        """Return whether the page behind a path that was just matched is on its way to the device."""
        return self.tiers.is_loading(self.tree.match_below(path, tokens, limit, extra_key))

    def copied(self, done: CopyDone) -> PageLoad | None:
        """Note that a copy has ended. Returns the load that is over with it, if there is one."""
        load, pages = self.tiers.ended(done)
        self.pool.give(pages)
        return load

    def flush(self) -> int:
        """Forget every cached page that no request holds, on all tiers. Returns how many."""
        if self._offload is not None:
            self._offload.finish_closing()
        count, pages = self.tree.clear()
        self.pool.give(pages)
        self.events.cleared(self.tree.nodes(), self.tiers.order)
        return count

    def forget_flights(self) -> None:
        """Give up all copies in flight: the runner is gone, and none of them will end."""
        self.pool.give(self.tiers.forget_flights())
