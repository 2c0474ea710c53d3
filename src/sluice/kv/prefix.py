"""PrefixTree: a trie of pages. Equal beginnings of token lists share their KV.

A node is one full page of tokens that has been computed; the key of a child is the bytes of its tokens. Token lists
under different `extra_key`s live under different roots and share nothing.

A request holds a *path*: the nodes from the root over the pages it uses. Every node counts the paths through it, so
a node's count is at least that of each child, the nodes nobody holds form whole subtrees, and eviction takes leaves
of those, least recently used first.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol


class Node:
    """One published page."""

    __slots__ = ("children", "key", "page", "parent", "refs", "used")

    def __init__(self, key: bytes, page: int, parent: Node | None) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.refs = 0
        self.used = 0

    def __repr__(self) -> str:
        return f"Node(page={self.page}, refs={self.refs}, used={self.used}, children={len(self.children)})"


class PrefixCache(Protocol):
    """What the manager asks of a prefix cache."""

    @property
    def num_pages(self) -> int:
        """Pages the cache owns."""
        ...

    @property
    def num_evictable(self) -> int:
        """Of those, pages no path holds."""
        ...

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        """Bring `path`, a path found before or empty, up to date: the longest one of whole pages equal to the beginning
        of `tokens`, at most `limit` tokens."""
        ...

    def lock(self, path: Sequence[Node]) -> None:
        """Hold every node of a path."""
        ...

    def unlock(self, path: Sequence[Node]) -> None:
        """Let a held path go."""
        ...

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        """Lengthen a held path, in place, to at most `count` pages."""
        ...

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        """Keep what is worth keeping of a leaving request's private pages; return the others."""
        ...

    def forget(self, path: Sequence[Node]) -> list[int]:
        """Give up what of a path that was just let go nobody else holds, from its end."""
        ...

    def evict(self, count: int) -> list[int]:
        """Give up `count` pages that nobody holds."""
        ...

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children."""
        ...


class PrefixTree:
    """The prefix cache."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
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
            if node is not None:
                path.append(node)

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
            if key in parent.children:
                break
            parent = self._insert(parent, key, pages[index])
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
            if twin is None:
                node = self._insert(node, key, pages[index])
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
            if node.refs or node.children:
                break
            pages.append(self._remove(node))
        return pages

    def evict(self, count: int) -> list[int]:
        assert count <= self.num_evictable, f"{count} pages to evict, {self.num_evictable} evictable"
        pages: list[int] = []
        while len(pages) < count:
            used, _, node = heapq.heappop(self._leaves)
            if self._is_candidate(node, used):
                pages.append(self._remove(node))
        return pages

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

    def _insert(self, parent: Node, key: bytes, page: int) -> Node:
        node = Node(key, page, parent)
        node.used = self._tick
        parent.children[key] = node
        self._num_pages += 1
        return node

    def _root(self, extra_key: str) -> Node:
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = Node(extra_key.encode(), -1, None)
        return root

    def _is_candidate(self, node: Node, used: int) -> bool:
        return node.refs == 0 and node.used == used and not node.children and node.page >= 0

    def _offer(self, node: Node) -> None:
        if node.refs or node.children:
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > 2 * self._num_pages + 64:
            self._leaves = [entry for entry in self._leaves if self._is_candidate(entry[2], entry[0])]
            heapq.heapify(self._leaves)

    def _remove(self, node: Node) -> int:
        """Unlink a leaf and return its page; its parent may become a candidate, its namespace may end."""
        parent = node.parent
        assert parent is not None, f"{node} has no parent"
        del parent.children[node.key]
        self._num_pages -= 1
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children:
            del self._roots[parent.key.decode()]
        page, node.page = node.page, -1
        return page


class NoPrefix:
    """Prefix caching off, as an object: nothing is ever found, held or published."""

    num_pages = 0
    num_evictable = 0

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        pass

    def lock(self, path: Sequence[Node]) -> None:
        pass

    def unlock(self, path: Sequence[Node]) -> None:
        pass

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        pass

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        return list(pages)

    def forget(self, path: Sequence[Node]) -> list[int]:
        return []

    def evict(self, count: int) -> list[int]:
        assert count == 0, f"nothing to evict, {count} pages wanted"
        return []

    def nodes(self) -> Iterator[Node]:
        return iter(())
