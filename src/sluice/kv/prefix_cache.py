"""PrefixTree: a trie of pages. Equal beginnings of token lists share their KV.

A node is one full page of tokens that has been computed; the key of a child is the bytes of its tokens. Token lists
under different `extra_key`s live under different roots and share nothing.

A request holds a *path*: the nodes from the root to the last page it shares. Every node counts the paths through it.
So a node's count is at least that of each child, the nodes that no path holds form whole subtrees, and eviction takes
the leaves of these, least recently used first.

With tiers behind the device (`tiers.py`) a node may outlive its page. The ancestors of a node on the device are on the
device too; below them come nodes that are on other tiers alone. Paths hold only nodes on the device.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.nodes import NOWHERE, Node, parent_of
from sluice.kv.prefix_cache_base import PrefixCache
from sluice.kv.records import Records
from sluice.kv.windows import WindowPages
from sluice.types import Tier

KEYS_AT_ONCE = 256
"""Pages whose keys are made at once: a prompt of a million tokens has very many."""


class Keeper(Protocol):
    """What the tree needs of the tiers behind the device."""

    def published(self, node: Node) -> None:
        """Note that a node has a page of the device now."""
        ...

    def keeps(self, node: Node) -> bool:
        """Return whether a node whose page is about to be taken is on another tier, or soon will be."""
        ...

    def suspected(self, node: Node) -> None:
        """Note that a node's copies may not be what was stored. It is on the device."""
        ...

    def removed(self, node: Node) -> None:
        """Note that a node has left the tree. Its descendants have been removed before it, its ancestors have not."""
        ...


class PrefixTree(PrefixCache):
    """A prefix cache that keeps computed pages until others need the room.

    Args:
        page_size: tokens of a page.
        keeper: the tiers behind the device.
        events: receives which nodes get and lose a page.
        windows: pages of windows of nodes, which these lose with their own; None: nodes have none.
        records: those of nodes, which these lose with their page; None: nodes have none.
    """

    enabled = True

    def __init__(
        self,
        page_size: int,
        keeper: Keeper,
        events: NoEvents = NO_EVENTS,
        windows: WindowPages | None = None,
        records: Records | None = None,
    ) -> None:
        self._page_size = page_size
        self._records = records
        self._keeper = keeper
        self._events = events
        self._windows = windows
        self._roots: dict[str, Node] = {}
        self._num_pages = 0
        self._num_held = 0
        self._tick = 0
        self._offers = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of (used, number of the offer, node): candidates for eviction. An entry is stale once its node is
        held, was used again, gained a child or left; it is skipped when it comes up."""

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        return self._num_pages - self._num_held

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        # The ancestors of a node in the tree are in the tree too, so only the end of an old path can be gone.
        while path and path[-1].page < 0:
            path.pop()
        node = path[-1] if path else self._roots.get(extra_key)
        for index in range(len(path), limit // self._page_size):
            if node is None:
                break
            node = node.children.get(self._key(tokens, index))
            if node is None or node.page < 0:
                break
            path.append(node)

    def match_below(self, path: Sequence[Node], tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        node = path[-1] if path else self._roots.get(extra_key)
        for index in range(len(path), limit // self._page_size):
            if node is None:
                return
            node = node.children.get(self._key(tokens, index))
            if node is None or node.page >= 0:
                return
            yield node

    def match_any(self, found: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        while found and found[-1].has_left:  # as in `match`
            found.pop()
        node = found[-1] if found else self._roots.get(extra_key)
        size, width = self._page_size, self._page_size * tokens.itemsize
        stop = limit // size * size
        for first in range(len(found) * size, stop, KEYS_AT_ONCE * size):
            keys = tokens[first : min(first + KEYS_AT_ONCE * size, stop)].tobytes()
            for at in range(0, len(keys), width):
                node = None if node is None else node.children.get(keys[at : at + width])
                if node is None:
                    return
                found.append(node)

    def lock(self, path: Sequence[Node]) -> None:
        for node in path:
            if node.refs == 0:
                self._num_held += 1
            node.refs += 1

    def unlock(self, path: Sequence[Node]) -> None:
        self._tick += 1
        for node in path:
            assert node.refs > 0, f"{node} is not held"
            node.refs -= 1
            node.used = self._tick
            if node.refs == 0:
                self._num_held -= 1
        if path:
            self.offer(path[-1])

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        """Lengthen a held path to `count` pages: `pages[i]` holds the computed KV of the i-th page of `tokens`.

        The path ends before a page whose tokens another request has published first. Rows are never rewritten to the
        shared page, since a step in flight may be reading them, and to hold the shared page beside the request's own
        would cost two pages for one. If the shared page is evicted meanwhile, the path continues; else `adopt` sorts
        out the rest.
        """
        parent = path[-1] if path else self._root(extra_key)
        for index in range(len(path), count):
            key = self._key(tokens, index)
            child = parent.children.get(key)
            if child is not None and child.page >= 0:
                break
            parent = self.fill(child or self.insert(parent, key), pages[index])
            parent.refs = 1
            self._num_held += 1
            path.append(parent)

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        """Keep the private pages of a leaving request, up to `count`, whose tokens are not cached yet. Nodes of the
        same tokens count as used now, as if the request had shared them.

        Returns:
            The private pages that are not kept.
        """
        self._tick += 1
        node = path[-1] if path else self._root(extra_key)
        left: list[int] = []
        for index in range(len(path), count):
            key = self._key(tokens, index)
            child = node.children.get(key)
            if child is None or child.page < 0:
                node = self.fill(child or self.insert(node, key), pages[index])
            else:
                node = child
                node.used = self._tick
                left.append(pages[index])
        if node.parent is not None:
            self.offer(node)
        elif not node.children:
            del self._roots[extra_key]
        return [*left, *pages[count:]]

    def forget(self, path: Sequence[Node]) -> list[int]:
        pages: list[int] = []
        for node in reversed(path):
            if node.refs or node.resident:
                break
            pages += self.drop(node)
        return pages

    def forget_below(self, path: Sequence[Node]) -> list[int]:
        for node in path:
            if node.copies is None or node.copies.gone:
                break
            if node.refs == 0:
                return self.drop(node)
            self._keeper.suspected(node)
        return []

    def forget_copies(self, node: Node) -> list[int]:
        if node.has_left:
            return []
        if node.page < 0:
            return self.drop(node)
        self._keeper.suspected(node)
        return []

    def evict(self, count: int) -> list[int]:
        assert count <= self.num_evictable, f"{count} pages to evict, {self.num_evictable} evictable"
        pages: list[int] = []
        while len(pages) < count:
            used, _, node = heapq.heappop(self._leaves)
            if self._is_candidate(node, used):
                pages += [self._vacate(node)] if self._keeper.keeps(node) else self.drop(node)
        return pages

    def clear(self) -> tuple[int, list[int]]:
        tops = [node for node in self.nodes() if node.refs == 0 and self._is_below_held(node)]
        before = sum(1 for _ in self.nodes())
        pages = [page for node in tops for page in self.drop(node)]
        return before - sum(1 for _ in self.nodes()), pages

    def drop(self, node: Node) -> list[int]:
        """Remove a node that no path holds, and all nodes below it. Returns the pages they had."""
        parent = parent_of(node)
        pages: list[int] = []
        gone = [node]
        for each in gone:
            gone += each.children.values()
        for each in reversed(gone):
            assert each.refs == 0, f"{each} is dropped while it is held"
            if each.page >= 0:
                pages.append(self._vacate(each))
            self._keeper.removed(each)
        del parent.children[node.key]
        if parent.parent is None and not parent.children:
            del self._roots[parent.key.decode()]
        return pages

    def child_or_new(self, parent: Node | None, key: bytes, extra_key: str) -> Node:
        """Return the node of these tokens behind `parent`, a new one without a page if there is none.

        Args:
            parent: None: the root of the namespace.
        """
        above = self._root(extra_key) if parent is None else parent
        return above.children.get(key) or self.insert(above, key)

    def child(self, parent: Node | None, key: bytes, extra_key: str) -> Node | None:
        """Return the node of these tokens behind `parent`, or behind the root of the namespace, if there is one."""
        above = self._roots.get(extra_key) if parent is None else parent
        return None if above is None else above.children.get(key)

    def restored(self, extra_key: str, parent: Node | None, key: bytes) -> Node | None:
        """Return a new node without a page behind `parent`, or behind the root of the namespace; None if there is one
        already."""
        above = self._root(extra_key) if parent is None else parent
        return None if key in above.children else self.insert(above, key)

    def nodes(self) -> Iterator[Node]:
        stack = list(self._roots.values())
        while stack:
            for node in stack.pop().children.values():
                yield node
                stack.append(node)

    @property
    def num_namespaces(self) -> int:
        """Extra keys that have cached pages."""
        return len(self._roots)

    @property
    def num_offers(self) -> int:
        """Entries in the queue for eviction, stale ones included."""
        return len(self._leaves)

    def is_offered(self, node: Node) -> bool:
        """Return whether a leaf is queued for eviction. Slow: for checking laws."""
        return any(entry is node and self._is_candidate(node, used) for used, _, entry in self._leaves)

    def _key(self, tokens: array[int], index: int) -> bytes:
        return tokens[index * self._page_size : (index + 1) * self._page_size].tobytes()

    def insert(self, parent: Node, key: bytes) -> Node:
        """Add a node without a page."""
        node = Node(key, NOWHERE, parent)
        node.used = self._tick
        parent.children[key] = node
        return node

    def fill(self, node: Node, page: int) -> Node:
        """Give a page to a node that has none. Its parent must have one, and no path may hold the node yet."""
        assert node.page < 0 and node.parent is not None, f"{node} has a page"
        node.page = page
        node.used = self._tick
        node.parent.resident += 1
        self._num_pages += 1
        self._keeper.published(node)
        self._events.stored(node, Tier.DEVICE)
        return node

    def is_on_device(self, node: Node | None) -> bool:
        """Return whether a node has a page, or is the root of a namespace."""
        return node is not None and (node.page >= 0 or node.parent is None)

    def _root(self, extra_key: str) -> Node:
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = Node(extra_key.encode(), NOWHERE, None)
        return root

    def _is_candidate(self, node: Node, used: int) -> bool:
        return node.refs == 0 and node.used == used and not node.resident and node.page >= 0

    def _is_below_held(self, node: Node) -> bool:
        """Return whether a node that no path holds follows a node that one holds, or a root."""
        parent = node.parent
        return parent is None or parent.parent is None or parent.refs > 0

    def offer(self, node: Node) -> None:
        """Queue a node for eviction, if no path holds it and none of its children is on the device."""
        if node.refs or node.resident or node.page < 0:
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > 2 * self._num_pages + 64:
            self._leaves = [entry for entry in self._leaves if self._is_candidate(entry[2], entry[0])]
            heapq.heapify(self._leaves)

    def _vacate(self, node: Node) -> int:
        """Take the page of a node without children on the device; its parent may become a candidate for eviction."""
        parent = parent_of(node)
        assert not node.resident, f"{node} is no leaf on the device"
        self._num_pages -= 1
        parent.resident -= 1
        page, node.page = node.page, -1
        if self._windows is not None and node.window >= 0:
            self._windows.forget(node)
        if self._records is not None and node.record >= 0:
            self._records.forget(node)
        self._events.removed(node, Tier.DEVICE)
        if parent.parent is not None:
            self.offer(parent)
        return page
