"""KVManager: which pages a request holds, from admission to release.

It knows token ids and pages, not requests: a request is a `Lease` here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.kv.pages import PagePool
from sluice.kv.prefix import Node, NoPrefix, PrefixTree


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

    @property
    def private_pages(self) -> list[int]:
        """The pages only this lease holds."""
        return self.pages[len(self.path) :]


class KVManager:
    """Pages and prefix cache behind one set of verbs: match, acquire, extend, publish, release."""

    def __init__(self, *, num_pages: int, page_size: int, prefix_caching: bool = True) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.tree = PrefixTree(page_size) if prefix_caching else NoPrefix()

    @property
    def num_pages(self) -> int:
        return self.pool.num_pages

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
        return Lease(extra_key, list(path), [node.page for node in path])

    def missing(self, lease: Lease, num_tokens: int) -> int:
        """Pages a lease lacks to hold `num_tokens` tokens."""
        return max(0, self.pages_for(num_tokens) - len(lease.pages))

    def extend(self, lease: Lease, num_tokens: int) -> tuple[int, ...]:
        """Lengthen a lease to hold `num_tokens` tokens, evicting what is needed; `missing` must be `available`.

        Returns the pages added.
        """
        count = self.missing(lease, num_tokens)
        if count > self.pool.num_free:
            self.pool.give(self.tree.evict(count - self.pool.num_free))
        added = self.pool.take(count)
        lease.pages += added
        return tuple(added)

    def publish(self, lease: Lease, tokens: array[int], computed: int) -> None:
        """Let others see the full pages among the first `computed` tokens."""
        full = computed // self.page_size
        if full > len(lease.path):
            self.tree.publish(lease.path, tokens, lease.pages, full, lease.extra_key)

    def reclaimable(self, lease: Lease) -> int:
        """Pages that become available when this lease alone is released."""
        return len(lease.private_pages) + sum(node.refs == 1 for node in lease.path)

    def release(self, lease: Lease, tokens: array[int], computed: int) -> None:
        """Give everything back. Full pages among the first `computed` tokens stay cached, twins excepted."""
        count = computed // self.page_size
        self.pool.give(self.tree.adopt(lease.path, tokens, lease.pages, count, lease.extra_key))
        self.tree.unlock(lease.path)
        lease.path, lease.pages = [], []

    def discard(self, lease: Lease) -> None:
        """Give everything back and keep none of it: the request failed, and its KV may be what is wrong with it."""
        self.pool.give(lease.private_pages)
        self.tree.unlock(lease.path)
        self.pool.give(self.tree.forget(lease.path))
        lease.path, lease.pages = [], []

    def flush(self) -> int:
        """Forget every cached page that nobody holds. Returns how many."""
        count = self.tree.num_evictable
        self.pool.give(self.tree.evict(count))
        return count
