"""PrefixTree: a trie of pages. Equal beginnings of token lists share their KV.

A node is one full page of tokens that has been computed; the key of a child is the bytes of its tokens. Token lists
under different `extra_key`s live under different roots and share nothing.

A request holds a *path*: the nodes from the root over the pages it uses. Every node counts the paths through it, so
a node's count is at least that of each child, the nodes nobody holds form whole subtrees, and eviction takes leaves
of those, least recently used first.

With tiers behind the device (`tiers.py`) a node may outlive its page: whoever lies on the device has its ancestors
there too, and below them come nodes that lie on other tiers alone. Only nodes on the device are held.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from sluice.kv.nodes import Node
from sluice.kv.prefix_cache import PrefixCache


class Keeper(Protocol):
    """What the tree asks of the tiers behind the device."""

    def published(self, node: Node) -> None:
        """It has a page now."""
        ...

    def keeps(self, node: Node) -> bool:
        """Its page is about to be taken. True: it lies on another tier, or soon will."""
        ...

    def suspected(self, node: Node) -> None:
        """Its copies may not be what was stored. It is on the device."""
        ...

    def removed(self, node: Node) -> None:
        """It has left the tree. Its ancestors, if they left with it, have not been told yet."""
        ...


class PrefixTree(PrefixCache):
    """The prefix cache.

    Args:
        keeper: the tiers behind the device.
    """

    enabled = True

    def __init__(self, page_size: int, keeper: Keeper) -> None:
        self._page_size = page_size
        self._keeper = keeper
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
        # Whatever is in the tree has its ancestors there too, so only the end of an old path can be gone.
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

    def match_any(self, tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        node = self._roots.get(extra_key)
        for index in range(limit // self._page_size):
            node = None if node is None else node.children.get(self._key(tokens, index))
            if node is None:
                return
            yield node

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
            self._offer(path[-1])

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        """Lengthen a held path to `count` pages: `pages[i]` holds the computed KV of the i-th page of `tokens`.

        It ends before a page whose tokens a twin has published first: rows are never rewritten to the shared page (a
        step in flight may be reading them), and holding the twin's page beside its own would cost the request two
        pages for one. Should the twin's page be evicted meanwhile, the path goes on; else `adopt` sees to the rest.
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
        """The request leaves: keep those of its pages from the end of its held path to `count` that are no twins.

        A twin counts as used now, as if the request had shared it. Returns the pages not kept.
        """
        self._tick += 1
        node = path[-1] if path else self._root(extra_key)
        left: list[int] = []
        for index in range(len(path), count):
            key = self._key(tokens, index)
            twin = node.children.get(key)
            if twin is None or twin.page < 0:
                node = self.fill(twin or self.insert(node, key), pages[index])
            else:
                node = twin
                node.used = self._tick
                left.append(pages[index])
        if node.parent is not None:
            self._offer(node)
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
        """Take a node that nobody holds out of the tree, and what is below it. Returns the pages they had."""
        parent = node.parent
        assert parent is not None, f"{node} has no parent"
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
        """The node of these tokens behind `parent`, or the first of its namespace; a new one, without a page, if need
        be."""
        above = self._root(extra_key) if parent is None else parent
        return above.children.get(key) or self.insert(above, key)

    def child(self, parent: Node | None, key: bytes, extra_key: str) -> Node | None:
        """The node of these tokens behind `parent`, or the first of its namespace, if there is one."""
        above = self._roots.get(extra_key) if parent is None else parent
        return None if above is None else above.children.get(key)

    def restored(self, extra_key: str, parent: Node | None, key: bytes) -> Node | None:
        """A new node without a page behind `parent`, or the first of its namespace; None if it is there already."""
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
        return len(self._roots)

    @property
    def num_offers(self) -> int:
        """Entries in the queue for eviction, stale ones included."""
        return len(self._leaves)

    def is_offered(self, node: Node) -> bool:
        """Eviction knows of this leaf. Slow: for checking laws."""
        return any(entry is node and self._is_candidate(node, used) for used, _, entry in self._leaves)

    def _key(self, tokens: array[int], index: int) -> bytes:
        return tokens[index * self._page_size : (index + 1) * self._page_size].tobytes()

    def insert(self, parent: Node, key: bytes) -> Node:
        """A new node without a page."""
        node = Node(key, -1, parent)
        node.used = self._tick
        parent.children[key] = node
        return node

    def fill(self, node: Node, page: int) -> Node:
        """Give a node that has none a page. Its parent must have one; nobody holds it yet."""
        assert node.page < 0 and node.parent is not None, f"{node} has a page"
        node.page = page
        node.used = self._tick
        node.parent.resident += 1
        self._num_pages += 1
        self._keeper.published(node)
        return node

    def offer(self, node: Node) -> None:
        """A node that nobody holds was filled: it may be evicted."""
        self._offer(node)

    def is_on_device(self, node: Node | None) -> bool:
        """It has a page, or it is the root of a namespace."""
        return node is not None and (node.page >= 0 or node.parent is None)

    def _root(self, extra_key: str) -> Node:
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = Node(extra_key.encode(), -1, None)
        return root

    def _is_candidate(self, node: Node, used: int) -> bool:
        return node.refs == 0 and node.used == used and not node.resident and node.page >= 0

    def _is_below_held(self, node: Node) -> bool:
        """The topmost of those nobody holds."""
        parent = node.parent
        return parent is None or parent.parent is None or parent.refs > 0

    def _offer(self, node: Node) -> None:
        if node.refs or node.resident or node.page < 0:
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > 2 * self._num_pages + 64:
            self._leaves = [entry for entry in self._leaves if self._is_candidate(entry[2], entry[0])]
            heapq.heapify(self._leaves)

    def _vacate(self, node: Node) -> int:
        """Take the page of a node without children on the device; its parent may become a candidate."""
        parent = node.parent
        assert parent is not None and not node.resident, f"{node} is no leaf on the device"
        self._num_pages -= 1
        parent.resident -= 1
        page, node.page = node.page, -1
        if parent.parent is not None:
            self._offer(parent)
        return page
