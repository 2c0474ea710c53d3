"""KVManager: which pages a request holds, from admission to release.

It knows token ids and pages, not requests: a request is a `Lease` here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from sluice.kv.flights import Load
from sluice.kv.lower_tiers import LowerTiers, NoTiers
from sluice.kv.offload_lease import OffloadLease
from sluice.kv.offload_pool import OffloadPool
from sluice.kv.pages import PagePool
from sluice.kv.prefix import Node, NoPrefix, PrefixCache, PrefixTree
from sluice.kv.tiers import Tiers
from sluice.types import CopyDone, OffloadLimits, TierLimits


@dataclass(slots=True, eq=False)
class Lease:
    """The pages of one live request, in row order.

        pages   [ 0 ........... len(path) ................ len(pages) )
                  published: the        private: written by this
                  tree owns them        request, full or not

    A full page is private where a twin has published the same tokens first, and before its step is committed.
    """

    extra_key: str
    path: list[Node]
    pages: list[int] = field(default_factory=list)
    load: Load | None = None
    """On the way to the device, to lengthen the path."""

    @property
    def private_pages(self) -> list[int]:
        """The pages only this lease holds."""
        return self.pages[len(self.path) :]


class KVManager:
    """Pages, prefix cache and tiers behind one set of verbs: match, acquire, load, extend, publish, release."""

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        prefix_caching: bool = True,
        tiers: TierLimits | None = None,
        offload: OffloadLimits | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.tiers: LowerTiers = NoTiers()
        if (prefix_caching or offload is not None) and tiers is not None and (tiers.host_pages or tiers.disk_pages):
            self.tiers = Tiers(tiers, page_size)
        self.tree: PrefixCache = NoPrefix()
        if prefix_caching:
            tree = self.tree = PrefixTree(page_size, self.tiers)
            self.tiers.attach(tree)
        self._offload = (
            None if offload is None else OffloadPool(offload, self.tiers, self.tree, page_size, self._take, num_pages)
        )

    @property
    def num_pages(self) -> int:
        return self.pool.num_pages

    @property
    def can_offload(self) -> bool:
        """Contexts longer than the device are served."""
        return self._offload is not None

    @property
    def offload(self) -> OffloadPool:
        """Where they lie."""
        assert self._offload is not None, "contexts longer than the device are refused"
        return self._offload

    @property
    def num_window_pages(self) -> int:
        """Pages of the device that offloaded requests hold."""
        return 0 if self._offload is None else self._offload.num_window_pages

    @property
    def available(self) -> int:
        """Pages that can be had now: free, or cached and held by nobody."""
        return self.pool.num_free + self.tree.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def match(self, tokens: array[int], limit: int, extra_key: str, path: list[Node] | None = None) -> list[Node]:
        """The cached pages equal to the beginning of `tokens`, at most `limit` tokens. Holds nothing.

        Args:
            path: what an earlier match of the same tokens found; it is brought up to date and returned.
        """
        path = [] if path is None else path
        self.tree.match(path, tokens, limit, extra_key)
        return path

    def next_page(self, tokens: array[int], path: Sequence[Node], extra_key: str) -> tuple[object, ...]:
        """Names the first page of `tokens` behind `path`: equal names mean equal tokens from the beginning on."""
        size, start = self.page_size, len(path) * self.page_size
        return (extra_key, path[-1] if path else None, tokens[start : start + size].tobytes())

    def acquire(self, path: Sequence[Node], extra_key: str) -> Lease:
        """Hold a matched path. What was evictable in it no longer is."""
        self.tree.lock(path)
        self.tiers.used(path)
        return Lease(extra_key, list(path), [node.page for node in path])

    def missing(self, lease: Lease, num_tokens: int) -> int:
        """Pages a lease lacks to hold `num_tokens` tokens; those being loaded for it are its own."""
        coming = 0 if lease.load is None else len(lease.load.pages)
        return max(0, self.pages_for(num_tokens) - len(lease.pages) - coming)

    def extend(self, lease: Lease, num_tokens: int) -> tuple[int, ...]:
        """Lengthen a lease to hold `num_tokens` tokens, evicting what is needed; `missing` must be `available`.

        Returns the pages added.
        """
        assert lease.load is None, f"pages for {num_tokens} tokens while others are loaded"
        added = self._take(self.missing(lease, num_tokens))
        lease.pages += added
        return tuple(added)

    def publish(self, lease: Lease, tokens: array[int], computed: int) -> None:
        """Let others see the full pages among the first `computed` tokens."""
        full = computed // self.page_size
        if full > len(lease.path):
            self.tree.publish(lease.path, tokens, lease.pages, full, lease.extra_key)

    def loadable(self, tokens: array[int], path: Sequence[Node], limit: int, extra_key: str) -> list[Node]:
        """What follows a path that was just matched and is worth loading, at most up to `limit` tokens."""
        return self.tiers.loadable(self.tree.match_below(path, tokens, limit, extra_key))

    def is_loading(self, tokens: array[int], path: Sequence[Node], limit: int, extra_key: str) -> bool:
        """The page behind a path that was just matched is on its way to the device."""
        return self.tiers.is_loading(self.tree.match_below(path, tokens, limit, extra_key))

    def load(self, lease: Lease, nodes: list[Node]) -> None:
        """Begin to load what follows a lease's path; as many pages must be `available`."""
        self.tiers.hold(nodes)  # first: eviction may look for room on their tier
        lease.load = self.tiers.load(nodes, self._take(len(nodes)))

    def loaded(self, lease: Lease) -> None:
        """The load of this lease is over: hold what came of it."""
        assert lease.load is not None, "nothing was loaded"
        nodes, lease.load = lease.load.nodes, None
        come = list(takewhile(lambda node: node.page >= 0, nodes))
        self.tree.lock(come)
        lease.path += come
        lease.pages += [node.page for node in come]

    def copied(self, done: CopyDone) -> Load | None:
        """A copy ended. Returns the load that is over with it, if one is."""
        load, pages = self.tiers.ended(done)
        self.pool.give(pages)
        return load

    def open_offloaded(
        self, tokens: array[int], cacheable: int, num_tokens: int, extra_key: str
    ) -> OffloadLease | None:
        """All that a offloaded request of `num_tokens` tokens will ever hold, which begins with `tokens`; None if the
        tier has no room for it now. As many pages as its window has must be `available`.

        Args:
            cacheable: most tokens that may come from the cache.
        """
        return self.offload.open(tokens, cacheable, self.pages_for(num_tokens), extra_key)

    def close_offloaded(self, lease: OffloadLease, tokens: array[int], *, keep: bool) -> None:
        """Give everything back.

        Args:
            tokens: of its context.
            keep: what it has read and published is sound; else none of it stays cached, as far as nobody else uses it.
        """
        if keep:
            self.offload.publish(lease, tokens, is_over=True)
        path = list(lease.path)
        self.pool.give(self.offload.close(lease))
        if not keep:
            self.pool.give(self.tree.forget_below(path))

    def reclaimable(self, lease: Lease) -> int:
        """Pages that become available when this lease alone is released: not those that copies are on their way to."""
        not_begun = 0 if lease.load is None else len(lease.load.pages) - lease.load.begun
        return len(lease.private_pages) + sum(node.refs == 1 for node in lease.path) + not_begun

    def release(self, lease: Lease, tokens: array[int], computed: int) -> None:
        """Give everything back. Full pages among the first `computed` tokens stay cached, twins excepted."""
        self._cancel(lease)
        count = computed // self.page_size
        self.pool.give(self.tree.adopt(lease.path, tokens, lease.pages, count, lease.extra_key))
        self.tree.unlock(lease.path)
        lease.path, lease.pages = [], []

    def discard(self, lease: Lease) -> None:
        """Give everything back and keep none of it: the request failed, and its KV may be what is wrong with it."""
        self._cancel(lease)
        self.pool.give(lease.private_pages)
        self.tree.unlock(lease.path)
        self.pool.give(self.tree.forget(lease.path))
        lease.path, lease.pages = [], []

    def flush(self) -> int:
        """Forget every cached page that nobody holds, on all tiers. Returns how many."""
        count, pages = self.tree.clear()
        self.pool.give(pages)
        return count

    def forget_flights(self) -> None:
        """The runner is gone: no copy in flight will end."""
        self.pool.give(self.tiers.forget_flights())

    def _take(self, count: int) -> list[int]:
        if count > self.pool.num_free:
            self.pool.give(self.tree.evict(count - self.pool.num_free))
        return self.pool.take(count)

    def _cancel(self, lease: Lease) -> None:
        if lease.load is not None:
            load, lease.load = lease.load, None
            self.pool.give(self.tiers.cancel(load))
