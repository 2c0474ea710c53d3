"""Offloaded contexts: they lie on a tier behind the device, beside cached pages and shared with them.

    pages of the context   0 ........... stored ........... sent ........... computed ........... scheduled
    where they lie         on the tier,  on both, the       on the device    being written
                           read there    store on its way   alone

An offloaded request reserves all its pages on the tier, and a *window* of pages on the device, before it begins. It
takes nothing later, so it never waits for memory and never keeps others waiting for it. Page i of the context is
written to page `i mod window` of the window, once the page that was there is on the tier and no step in flight reads
it.

The cached beginning of a prompt is read where it lies. What a request computes goes to private pages of the tier. A
page becomes a node of the prefix tree as soon as it is stored, unless the tree has one of the same tokens already;
then other requests find it, and its own request reads it like the nodes that it found.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.nodes import Node, key_behind
from sluice.kv.pages import PagePool
from sluice.kv.prefix_cache import PrefixCache
from sluice.types import CachedTokens, OffloadLimits, Tier

RETRY_AFTER = 16
"""Calls of `OffloadPool.open` that are refused unseen after one found no room: matching a long prompt takes time."""


class OffloadLease:
    """The pages of an offloaded request: a `Lease`.

    Args:
        pool: where the pages come from.
        row: pages on the tier for all of the context, in order: those of a cached prefix, then its own.
        window: pages on the device.
        path: nodes of the cached prefix.
    """

    def __init__(self, pool: OffloadPool, extra_key: str, row: list[int], window: list[int], path: list[Node]) -> None:
        self._pool = pool
        self.extra_key = extra_key
        self.row = row
        self.window = window
        self.path = path
        """Nodes that the first pages of `row` belong to: found at the beginning, or published since."""
        self.digest = path[-1].digest if path else b""
        """Digest of the tokens up to page `sent`."""
        self.stored = len(path)
        """Pages that can be read on the tier, from the context's beginning."""
        self.sent = len(path)
        """Pages on the tier or on their way there."""
        self.known = 0
        """Pages of `row` that the runner knows."""
        self.bases: deque[int] = deque()
        """For each slice in flight, the first page that it reads on the device."""
        self.has_slot = False
        """A plan has opened the request's slot."""
        self.error: str | None = None
        """Why a page could not be stored."""
        self.lost: int | None = None
        """The first page of the context that cannot be read on the tier."""
        self.sending: set[int] = set()
        """Pages of the context whose stores were planned and have not ended."""
        self.is_closed = False
        self.done: set[int] = set()
        """Pages behind `stored` whose stores have ended out of turn."""
        on_host = pool.limits.tier is Tier.HOST
        tokens = len(path) * pool.page_size
        self.cached = CachedTokens(tokens, tokens if on_host else 0, 0 if on_host else tokens)

    def __repr__(self) -> str:
        return (
            f"OffloadLease(row={self.row}, window={self.window}, stored={self.stored}, sent={self.sent},"
            f" known={self.known}, bases={list(self.bases)})"
        )

    @property
    def capacity(self) -> int:
        return len(self.row) * self._pool.page_size

    @property
    def num_loading(self) -> int:
        return 0

    @property
    def first_held(self) -> int:
        """The first page of the context that lies on the device."""
        return min(self.stored, self.bases[0]) if self.bases else self.stored

    @property
    def end_of_window(self) -> int:
        """The first page of the context that has no page on the device now."""
        return self.first_held + len(self.window)

    def window_pages(self, first: int, end: int) -> tuple[int, ...]:
        """Return the pages on the device that hold pages `first` to `end` of the context."""
        assert self.first_held <= first <= end <= self.end_of_window, f"{first} to {end} of {self}"
        return tuple(self.window[index % len(self.window)] for index in range(first, end))

    def missing(self, num_tokens: int) -> int:
        """Return 0: an offloaded request has all the pages of the device that it will ever need."""
        return 0

    def shrink(self, num_tokens: int) -> None:
        """Do nothing: its pages of the device are a window, which it keeps."""

    def reclaimable(self) -> int:
        """Return 0: requests on the device wait for pages of other requests on the device alone."""
        return 0

    def publish(self, tokens: array[int], computed: int) -> None:
        """Send the full pages among the first `computed` tokens to the tier; `share_stored` shows them to others."""
        self._pool.send(self, tokens, computed)

    def share_stored(self, tokens: array[int]) -> None:
        """Let other requests use the pages that have reached the tier."""
        self._pool.share(self, tokens, is_over=False)

    def release(self, tokens: array[int], computed: int) -> None:
        self._pool.share(self, tokens, is_over=True)
        self._pool.close(self)

    def discard(self) -> None:
        """Give all pages back. What this request has read or published leaves the cache, as far as no other request
        uses it."""
        path = list(self.path)
        self._pool.close(self)
        self._pool.forget(path)

    def lose(self, page: int) -> None:
        """Note that a page of the tier cannot be read. It leaves the cache at once, with what lies behind it."""
        self.lost = self.row.index(page)
        self._pool.lose(self, self.lost)

    def ended(self, index: int, error: str | None) -> None:
        """Note that the store of a page has ended."""
        self.sending.remove(index)
        if error is not None:
            self.error = f"page {index} of the context could not be stored: {error}"
            return
        self.done.add(index)
        while self.stored in self.done:
            self.done.remove(self.stored)
            self.stored += 1


class OffloadPool:
    """The pages of offloaded requests.

    Args:
        pool: pages of the device.
        take: takes pages of the device, evicting cached ones if needed; as many must be available.
    """

    def __init__(
        self,
        limits: OffloadLimits,
        tiers: LowerTiers,
        tree: PrefixCache,
        page_size: int,
        pool: PagePool,
        take: Callable[[int], list[int]],
    ) -> None:
        self.limits = limits
        self.page_size = page_size
        self._tiers = tiers
        self._tree = tree
        self._pool = pool
        self._take = take
        self._most_window_pages = max(limits.window_pages, pool.num_pages // 2)
        self._refusals = 0
        """Calls of `open` still to be refused unseen, unless a lease is closed."""
        self.num_window_pages = 0
        """Pages of the device that offloaded requests hold."""

    @property
    def num_pages(self) -> int:
        """Pages of the tier."""
        return self._tiers.pages_of(self.limits.tier)

    @property
    def has_window(self) -> bool:
        """Whether one more request may begin. All windows together take at most half of the device."""
        return self.num_window_pages + self.limits.window_pages <= self._most_window_pages

    def num_readable(self, found: list[Node]) -> int:
        """Return how many of the nodes equal to the beginning of a context a request would read on the tier."""
        return len(self._tiers.readable(iter(found), self.limits.tier))

    def open(self, tokens: array[int], cacheable: int, num_tokens: int, extra_key: str) -> OffloadLease | None:
        """Reserve all pages that an offloaded request will ever hold. A window of pages must be available.

        Args:
            tokens: the beginning of its context.
            cacheable: most tokens that may come from the cache.
            num_tokens: tokens of its whole context.

        Returns:
            None if the tier has no room for it now.
        """
        if self._refusals and self.num_window_pages:
            self._refusals -= 1
            return None
        tier = self.limits.tier
        found: list[Node] = []
        self._tree.match_any(found, tokens, cacheable, extra_key)
        path = self._tiers.readable(iter(found), tier)
        shared = self._tiers.read(path, tier)  # first: making room must not take these
        own = self._tiers.take(tier, -(-num_tokens // self.page_size) - len(path))
        if own is None:
            self._tiers.unread(path)
            self._refusals = RETRY_AFTER
            return None
        own.sort()  # pages that follow each other on the tier are read at once
        self.num_window_pages += self.limits.window_pages
        return OffloadLease(self, extra_key, [*shared, *own], self._take(self.limits.window_pages), path)

    def send(self, lease: OffloadLease, tokens: array[int], computed: int) -> None:
        """Send the full pages among the first `computed` tokens to the tier."""
        full = computed // self.page_size
        for index, source in zip(range(lease.sent, full), lease.window_pages(lease.sent, full), strict=True):
            key = None
            if self._tree.enabled:
                key = key_behind(lease.digest, self._key(tokens, index), lease.extra_key)
                lease.digest = key.digest
            self._tiers.store_offloaded(lease, index, source, self.limits.tier, lease.row[index], key)
        lease.sent = full

    def lose(self, lease: OffloadLease, index: int) -> None:
        """Count that a page could not be read, and let no request find it, or be given it again while there are
        others."""
        self._tiers.failed_to_read(self.limits.tier, lease.row[index])
        if index < len(lease.path):
            self._pool.give(self._tree.forget_copies(lease.path[index]))

    def share(self, lease: OffloadLease, tokens: array[int], *, is_over: bool) -> None:
        """Make the stored pages of a lease nodes of the tree. Where the tree has a node of the same tokens on the tier
        already, the lease reads that one instead, if the runner does not know its own page, or the lease is over."""
        if not self._tree.enabled:
            return
        end = lease.stored if lease.lost is None else min(lease.stored, lease.lost)
        for index in range(len(lease.path), end):
            key, page = self._key(tokens, index), lease.row[index]
            node = self._tiers.publish(lease.path, key, lease.extra_key, self.limits.tier, page)
            if node is None and (is_over or index >= lease.known):
                node = self._read_duplicate(lease, key, index)
            if node is None:
                break
            lease.path.append(node)

    def close(self, lease: OffloadLease) -> None:
        """Give all pages of a lease back. Those that were published stay cached."""
        self._tiers.unread(lease.path)
        own = range(len(lease.path), len(lease.row))
        self._tiers.give(self.limits.tier, [lease.row[index] for index in own if index not in lease.sending])
        window = lease.window
        self.num_window_pages -= len(window)
        self._refusals = 0
        lease.row, lease.window, lease.path, lease.is_closed = [], [], [], True
        self._pool.give(window)

    def forget(self, path: list[Node]) -> None:
        """Remove nodes that a failed request has read from the cache, as far as no other request uses them."""
        self._pool.give(self._tree.forget_below(path))

    def _read_duplicate(self, lease: OffloadLease, key: bytes, index: int) -> Node | None:
        """Read the node of the same tokens, if it lies on the tier, and give up the lease's own page."""
        tier = self.limits.tier
        node = self._tiers.behind(lease.path, key, lease.extra_key, tier)
        if node is not None:
            self._tiers.give(tier, [lease.row[index]])
            (lease.row[index],) = self._tiers.read([node], tier)
        return node

    def _key(self, tokens: array[int], index: int) -> bytes:
        return tokens[index * self.page_size : (index + 1) * self.page_size].tobytes()
