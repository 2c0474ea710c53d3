"""Shelf: where the contexts of offloaded requests lie, beside cached pages and shared with them.

A stream reads the cached beginning of its prompt where it lies. What it computes goes to private pages of the tier,
which become nodes of the prefix tree as soon as they are stored, unless a twin is there already: then others find them,
and it reads them like those it found.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.offload_lease import OffloadLease
from sluice.kv.page_names import key_behind
from sluice.kv.prefix import Node, NoPrefix, PrefixCache
from sluice.types import OffloadLimits

PUT_OFF = 16
"""Times that whoever asks is told so unseen, after one found no room: looking up a long prompt takes its time."""


class OffloadPool:
    """Pages of offloaded requests.

    Args:
        take: gives pages of the device; as many must be available.
        device_pages: how many the device has.
    """

    def __init__(
        self,
        limits: OffloadLimits,
        tiers: LowerTiers,
        tree: PrefixCache,
        page_size: int,
        take: Callable[[int], list[int]],
        device_pages: int,
    ) -> None:
        self.limits = limits
        self._tiers = tiers
        self._tree = tree
        self._page_size = page_size
        self._take = take
        self._most_places = max(limits.window_pages, device_pages // 2)
        self._put_off = 0
        """Times that nobody is to be looked up, unless a stream closes."""
        self.num_window_pages = 0
        """Pages of the device that streams hold."""

    @property
    def num_pages(self) -> int:
        """Of the tier."""
        return self._tiers.pages_of(self.limits.tier)

    @property
    def has_window(self) -> bool:
        """One more stream may begin: together they hold half of the device at most, the rest is others'."""
        return self.num_window_pages + self.limits.window_pages <= self._most_places

    def found(self, tokens: array[int], cacheable: int, extra_key: str) -> list[Node]:
        """The beginning of `tokens`, at most `cacheable` of them, that lies on the tier. Holds nothing."""
        return self._tiers.readable(self._tree.match_any(tokens, cacheable, extra_key), self.limits.tier)

    def open(self, tokens: array[int], cacheable: int, num_pages: int, extra_key: str) -> OffloadLease | None:
        """All that a offloaded request of so many pages will ever hold; None if the tier has no room for it now."""
        if self._put_off and self.num_window_pages:
            self._put_off -= 1
            return None
        path = self.found(tokens, cacheable, extra_key)
        shared = self._tiers.read(path, self.limits.tier)  # first: making room must not take these
        own = self._tiers.take(self.limits.tier, num_pages - len(path))
        if own is None:
            self._tiers.unread(path)
            self._put_off = PUT_OFF
            return None
        self.num_window_pages += self.limits.window_pages
        window = self._take(self.limits.window_pages)
        last = path[-1].copies if path else None
        digest = last.digest if last else b""
        count = len(path)
        return OffloadLease(extra_key, [*shared, *own], window, path, digest, stored=count, sent=count)

    def send(self, lease: OffloadLease, tokens: array[int], computed: int) -> None:
        """Bring the full pages among the first `computed` tokens to the tier."""
        full = computed // self._page_size
        for index, place in zip(range(lease.sent, full), lease.places(lease.sent, full), strict=True):
            key = None
            if not isinstance(self._tree, NoPrefix):
                key = key_behind(lease.digest, self._key(tokens, index), lease.extra_key)
                lease.digest = key.digest
            self._tiers.store_offloaded(lease, index, place, self.limits.tier, key)
        lease.sent = full

    def publish(self, lease: OffloadLease, tokens: array[int], *, is_over: bool = False) -> None:
        """Let others see what is stored. Where a twin lies on the tier already, the stream reads that one instead, if
        the runner does not know its own page, or the stream is over."""
        if isinstance(self._tree, NoPrefix):
            return
        for index in range(len(lease.path), lease.stored):
            key, page = self._key(tokens, index), lease.row[index]
            node = self._tiers.publish(lease.path, key, lease.extra_key, self.limits.tier, page)
            if node is None and (is_over or index >= lease.told):
                node = self._twin(lease, key, index)
            if node is None:
                break
            lease.path.append(node)

    def _twin(self, lease: OffloadLease, key: bytes, index: int) -> Node | None:
        """Read a twin's page, and give up the stream's own."""
        node, tier = self._tiers.behind(lease.path, key, lease.extra_key, self.limits.tier), self.limits.tier
        if node is not None:
            self._tiers.give(tier, [lease.row[index]])
            (lease.row[index],) = self._tiers.read([node], tier)
        return node

    def close(self, lease: OffloadLease) -> list[int]:
        """Give everything back; what was published stays cached. Returns the pages of the device."""
        self._tiers.unread(lease.path)
        own = range(len(lease.path), len(lease.row))
        self._tiers.give(self.limits.tier, [lease.row[index] for index in own if index not in lease.sending])
        places = lease.window
        self.num_window_pages -= len(places)
        self._put_off = 0
        lease.row, lease.window, lease.path, lease.is_closed = [], [], [], True
        return places

    def _key(self, tokens: array[int], index: int) -> bytes:
        return tokens[index * self._page_size : (index + 1) * self._page_size].tobytes()
