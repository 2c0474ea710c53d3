"""Offloaded contexts: they are on a tier behind the device, beside cached pages and shared with them.

    pages of the context   0 ........... stored ........... sent ........... computed ........... scheduled
    where they are         on the tier,  on both, the       on the device    being written
                           read there    store on its way   alone

An offloaded request reserves all its pages on the tier, and a *window* of pages on the device, before it begins. It
takes nothing later, so it never waits for memory and never keeps others waiting for it. Page i of the context is
written to page `i mod window` of the window, once the page that was there is on the tier and no step in flight reads
it.

A long context has so many pages that to find and reserve them all at once would keep streams waiting. So a lease is
*opened* over several steps, one lease at a time: first the pages of the cached prefix, which are held as they are
found, then its own. The pages of a lease that is over are given back over several steps as well.

The cached beginning of a prompt is read where it is. What a request computes goes to private pages of the tier. A
page becomes a node of the prefix tree as soon as it is stored, unless the tree has one of the same tokens already;
then other requests find it, and its own request reads it like the nodes that it found.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.nodes import Node, key_behind
from sluice.kv.pages import PagePool
from sluice.kv.prefix_cache_base import PrefixCache
from sluice.types import CachedTokens, OffloadLimits, Tier

RETRY_AFTER = 16
"""Calls of `OffloadPool.open` that are refused unseen after one found no room: matching a long prompt takes time."""


class OffloadLease:
    """The pages of an offloaded request: a `Lease`.

    Args:
        pool: where the pages come from.
        num_pages: pages of the whole context.
    """

    def __init__(self, pool: OffloadPool, extra_key: str, num_pages: int) -> None:
        self._pool = pool
        self.extra_key = extra_key
        self.num_pages = num_pages
        self.row: list[int] = []
        """Pages on the tier for all of the context, in order: those of a cached prefix, then its own."""
        self.window: list[int] = []
        """Pages on the device."""
        self.path: list[Node] = []
        """Nodes that the first pages of `row` belong to: found at the beginning, or published since."""
        self.is_matched = False
        """The cached prefix has been found to its end."""
        self.digest = b""
        """Digest of the tokens up to page `sent`."""
        self.stored = 0
        """Pages that can be read on the tier, from the context's beginning."""
        self.sent = 0
        """Pages on the tier or on their way there."""
        self.known = 0
        """Pages of `row` that the runner knows."""
        self.bases: deque[int] = deque()
        """First page that each slice in flight reads on the device, oldest slice first."""
        self.has_slot = False
        """A plan has opened the request's slot."""
        self.error: str | None = None
        """Why a page could not be stored."""
        self.lost: int | None = None
        """The first page of the context that cannot be read on the tier."""
        self.sending: set[int] = set()
        """Pages of the context whose stores were planned and have not ended."""
        self.is_closed = False
        self.had_no_room = False
        """The tier could not give it all pages."""
        self.done: set[int] = set()
        """Pages behind `stored` whose stores have ended out of turn."""
        self.cached = CachedTokens(0)

    def __repr__(self) -> str:
        return (
            f"OffloadLease(row={self.row}, window={self.window}, stored={self.stored}, sent={self.sent},"
            f" known={self.known}, bases={list(self.bases)})"
        )

    @property
    def is_opening(self) -> bool:
        """Whether the context has not all of its pages yet; nothing is computed before it has."""
        return len(self.row) < self.num_pages

    @property
    def capacity(self) -> int:
        return len(self.row) * self._pool.page_size

    @property
    def num_loading(self) -> int:
        return 0

    @property
    def first_held(self) -> int:
        """The first page of the context that is on the device."""
        return min(self.stored, self.bases[0]) if self.bases else self.stored

    @property
    def end_of_window(self) -> int:
        """The first page of the context that has no page on the device now."""
        return self.first_held + len(self.window)

    def window_pages(self, first: int, end: int) -> tuple[int, ...]:
        """Return the pages on the device that hold pages `first` to `end` of the context."""
        assert self.first_held <= first <= end <= self.end_of_window, f"{first} to {end} of {self}"
        return tuple(self.window[index % len(self.window)] for index in range(first, end))

    def found(self, nodes: list[Node], pages: list[int]) -> None:
        """Note the next nodes of the cached prefix, which are read from now on, and their pages."""
        self.path += nodes
        self.row += pages
        self.stored = self.sent = len(self.path)
        self.digest = self.path[-1].digest if self.path else b""
        on_host = self._pool.limits.tier is Tier.HOST
        tokens = len(self.path) * self._pool.page_size
        self.cached = CachedTokens(tokens, tokens if on_host else 0, 0 if on_host else tokens)

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
        self._pool.finish_closing()
        self._pool.forget(path)

    def lose(self, page: int) -> None:
        """Note that a page of the tier cannot be read. It leaves the cache at once, with what is behind it."""
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


class ClosedPages(NamedTuple):
    """What a lease that is over has not given back yet."""

    path: list[Node]
    """Nodes that it read."""
    own: list[int]
    """Pages of the tier."""
    refusals: int
    """Calls of `open` to be refused unseen once all is given back: none, unless the tier had no room for it."""


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
        self._left = limits.pages_per_step
        """Pages that may still be looked up or reserved in this step."""
        self._closing: deque[ClosedPages] = deque()
        self.opening: OffloadLease | None = None
        """The lease that is being opened."""
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

    @property
    def is_busy(self) -> bool:
        """Whether no lease may begin before the next step: another one is being opened, or pages are given back."""
        return self.opening is not None or bool(self._closing) or self._left <= 0

    @property
    def closing(self) -> Sequence[ClosedPages]:
        """What leases that are over have not given back yet."""
        return self._closing

    def num_readable(self, found: list[Node]) -> int:
        """Return how many of the nodes equal to the beginning of a context a request would read on the tier."""
        return len(self._tiers.readable(iter(found), self.limits.tier))

    def begin_step(self) -> None:
        """Let `pages_per_step` pages more be looked up and reserved, and give as many back."""
        self._left = self.limits.pages_per_step
        self._give_back(self.limits.pages_per_step)

    def open(self, tokens: array[int], cacheable: int, num_tokens: int, extra_key: str) -> OffloadLease | None:
        """Begin to reserve all pages that an offloaded request will ever hold. The pool must not be busy, and a window
        of pages must be available.

        Args:
            tokens: the beginning of its context.
            cacheable: most tokens that may come from the cache.
            num_tokens: tokens of its whole context.

        Returns:
            The lease; while it `is_opening`, `open_further` is to be called in each step. None if the tier has no room
            for it now.
        """
        if self._refusals and self.num_window_pages:
            self._refusals -= 1
            return None
        assert not self.is_busy, f"a lease is begun beside {self.opening} and {len(self._closing)} that are over"
        lease = self.opening = OffloadLease(self, extra_key, -(-num_tokens // self.page_size))
        if not self.open_further(lease, tokens, cacheable):
            self._refusals = RETRY_AFTER
            self.close(lease)
            return None
        self.num_window_pages += self.limits.window_pages
        lease.window = self._take(self.limits.window_pages)
        return lease

    def open_further(self, lease: OffloadLease, tokens: array[int], cacheable: int) -> bool:
        """Find and reserve more pages of a lease, as many as may be in this step.

        Returns:
            False if the tier has no room for the others now: the lease is to be released.
        """
        tier = self.limits.tier
        if not lease.row and lease.num_pages > self._tiers.num_takeable(tier):
            lease.had_no_room = True  # nor if all of its pages were cached
            return False
        if not lease.is_matched:
            self._match_further(lease, tokens, cacheable)
        if lease.is_matched and lease.is_opening:
            missing = lease.num_pages - len(lease.row)
            own = self._tiers.take(tier, missing, min(missing, self._left))
            if own is None:
                lease.had_no_room = True
                return False
            self._left -= len(own)
            lease.row += own
        if not lease.is_opening:
            first = len(lease.path)
            lease.row[first:] = sorted(lease.row[first:])  # pages that follow each other on the tier are read at once
            self.opening = None
        return True

    def _match_further(self, lease: OffloadLease, tokens: array[int], cacheable: int) -> None:
        """Find and read more nodes of the cached prefix, as many as may be in this step."""
        first, size, tier = len(lease.path), self.page_size, self.limits.tier
        stop = min(cacheable // size, first + self._left)
        found = list(lease.path)
        if not (found and found[-1].has_left):  # if it has, those behind it have left before
            self._tree.match_any(found, tokens, stop * size, lease.extra_key)
        nodes = self._tiers.readable(islice(found, first, None), tier)
        lease.found(nodes, self._tiers.read(nodes, tier))
        self._left -= len(nodes)
        lease.is_matched = len(lease.path) < stop or stop == cacheable // size

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
        """Give all pages of a lease back, those of the tier over some steps if they are many. Pages that were published
        stay cached."""
        own = range(len(lease.path), len(lease.row))
        pages = [lease.row[index] for index in own if index not in lease.sending]
        self._closing.append(ClosedPages(lease.path, pages, RETRY_AFTER if lease.had_no_room else 0))
        if lease is self.opening:
            self.opening = None
        window = lease.window
        self.num_window_pages -= len(window)
        lease.row, lease.window, lease.path, lease.is_closed = [], [], [], True
        self._pool.give(window)
        self._give_back(self.limits.pages_per_step)

    def finish_closing(self) -> None:
        """Give all back that leases which are over still hold."""
        self._give_back(sum(len(each.path) + len(each.own) for each in self._closing))

    def _give_back(self, at_most: int) -> None:
        """Give back pages of the tier, the last ones of a context first."""
        while self._closing:
            closed = self._closing[0]
            nodes = closed.path[max(0, len(closed.path) - at_most) :]
            del closed.path[len(closed.path) - len(nodes) :]
            self._tiers.unread(nodes)
            at_most -= len(nodes)
            pages = closed.own[max(0, len(closed.own) - at_most) :]
            del closed.own[len(closed.own) - len(pages) :]
            self._tiers.give(self.limits.tier, pages)
            at_most -= len(pages)
            if closed.path or closed.own:
                return
            self._closing.popleft()
            self._refusals = closed.refusals

    def forget(self, path: list[Node]) -> None:
        """Remove nodes that a failed request has read from the cache, as far as no other request uses them."""
        self._pool.give(self._tree.forget_below(path))

    def _read_duplicate(self, lease: OffloadLease, key: bytes, index: int) -> Node | None:
        """Read the node of the same tokens, if it is on the tier, and give up the lease's own page."""
        tier = self.limits.tier
        node = self._tiers.behind(lease.path, key, lease.extra_key, tier)
        if node is not None:
            self._tiers.give(tier, [lease.row[index]])
            (lease.row[index],) = self._tiers.read([node], tier)
        return node

    def _key(self, tokens: array[int], index: int) -> bytes:
        return tokens[index * self.page_size : (index + 1) * self.page_size].tobytes()
