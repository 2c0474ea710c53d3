"""Windows: the pages of layers whose queries see the latest positions alone, of each request and of the cache.

A request holds such pages for as long as a query may still see them: those of the last `length - 1` positions before
the next one, and those that it is to write. What the window has left is given up when its step is committed.

    row      [ hole | hole | hole | page | page | page ]
    tree     [ node | node | node | node | node ]  private         a published page belongs to its node

A node keeps its page when no window holds it any more, so that a prompt that begins alike may go on from there: it
needs the pages of the last nodes before (`usable.py`). Pages that no window holds are the ones to be taken when none is
free: first those that a window has only passed over, then those before a place where a request has ended or begun;
in both groups the ones used least recently.

There are as many pages as running requests need at once, at least, so that none ever waits for one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.nodes import NOWHERE, Node
from sluice.kv.pages import PagePool
from sluice.types import WindowLimits


class WindowPages:
    """The pages of layers with a window: each is free, in the row of one request, or that of a node.

    Args:
        page_size: tokens of a page.
    """

    def __init__(self, limits: WindowLimits, page_size: int) -> None:
        self.reach = limits.length - 1
        """Positions before its own that a query sees."""
        self.page_size = page_size
        self.needed = -(-self.reach // page_size)
        """Nodes before the end of a prefix whose pages a request needs to go on from there."""
        self.pool = PagePool(limits.num_pages)
        self._passed: dict[Node, None] = {}
        """Nodes whose page no window holds, least recently used first."""
        self._ends: dict[Node, None] = {}
        """Those of them that are before a place where a request has ended or begun."""
        self.version = 0
        """Grows whenever a node gets or loses a page."""

    @property
    def num_cached(self) -> int:
        """Pages of nodes that no window holds."""
        return len(self._passed) + len(self._ends)

    @property
    def num_held(self) -> int:
        """Pages that requests hold."""
        return self.pool.num_pages - self.pool.num_free - self.num_cached

    def first_seen(self, start: int) -> int:
        """Return the first page that the query at position `start` sees."""
        return max(0, start - self.reach) // self.page_size

    def take(self, count: int) -> list[int]:
        """Take `count` pages, from nodes if not so many are free."""
        while self.pool.num_free < count:
            nodes = self._passed or self._ends
            assert nodes, f"{count} pages of windows wanted, {self.pool.num_free} free and none cached"
            self.forget(next(iter(nodes)))
        return self.pool.take(count)

    def fill(self, node: Node, page: int) -> None:
        """Give a node that has no page of windows the page of a request, which goes on to hold it."""
        assert node.window < 0 and not node.window_refs, f"{node} has a page of windows"
        node.window = page
        self.version += 1
        node.window_refs = 1

    def hold(self, nodes: Sequence[Node]) -> None:
        """Hold the pages of nodes, from which a request goes on."""
        for node in nodes:
            assert node.window >= 0, f"{node} has no page of windows"
            if not node.window_refs:
                del (self._ends if node.is_end else self._passed)[node]
            node.window_refs += 1
            node.is_end = True

    def leave(self, node: Node, *, is_end: bool) -> None:
        """Hold the page of a node no more.

        Args:
            is_end: whether a request has ended there, or another one is expected to.
        """
        assert node.window_refs > 0, f"no window holds {node}"
        node.window_refs -= 1
        node.is_end |= is_end
        if not node.window_refs:
            (self._ends if node.is_end else self._passed)[node] = None

    def forget(self, node: Node) -> None:
        """Take the page of a node, which no window may hold."""
        assert not node.window_refs, f"a window holds {node}"
        del (self._ends if node.is_end else self._passed)[node]
        page, node.window = node.window, NOWHERE
        self.version += 1
        self.pool.give([page])


class WindowRow:
    """The pages of one request in layers with a window, in row order.

    Args:
        path: the cached nodes that the request goes on from; the last ones have pages of windows.
    """

    __slots__ = ("_leaves_at", "_windows", "first", "pages")

    def __init__(self, windows: WindowPages, path: Sequence[Node]) -> None:
        self._windows = windows
        self.first = max(0, len(path) - windows.needed)
        """The first page that is held; those before it are holes."""
        self.pages = [NOWHERE] * self.first + [node.window for node in path[self.first :]]
        windows.hold(path[self.first :])
        self._leaves_at = self._next_leave()

    @property
    def reach(self) -> int:
        """Positions before its own that a query sees."""
        return self._windows.reach

    def extend(self, count: int) -> None:
        """Take pages, so that the row has `count`."""
        self.pages += self._windows.take(count - len(self.pages))

    def shrink(self, count: int) -> None:
        """Give the pages from `count` on back, which no node has."""
        self._windows.pool.give(self.pages[count:])
        del self.pages[count:]

    def new_pages(self, count: int, *, is_new: bool) -> tuple[int, ...]:
        """Return the pages that a chunk brings.

        Args:
            count: pages that were just taken.
            is_new: whether the row is not on the device yet.
        """
        return tuple(self.pages[self.first if is_new else len(self.pages) - count :])

    def published(self, path: Sequence[Node], start: int) -> None:
        """Let the nodes of a path from `start` on, which the request has just published, have its pages."""
        for index in range(max(start, self.first), len(path)):
            self._windows.fill(path[index], self.pages[index])

    def has_to_leave(self, computed: int) -> bool:
        """Return whether no query from position `computed` on sees the first page that is held."""
        return computed >= self._leaves_at

    def leave(self, computed: int, path: Sequence[Node], twins: Sequence[Node]) -> None:
        """Give up the pages that no query from position `computed` on sees.

        Args:
            path: the request's nodes.
            twins: nodes with the tokens of the request, which others may have published. Those without a page of
                windows are given what the request would give back.
        """
        end = min(self._windows.first_seen(computed), len(self.pages))
        self._give_up(range(self.first, end), path, twins, ends=False)
        self.first = end
        self._leaves_at = self._next_leave()

    def release(self, path: Sequence[Node], twins: Sequence[Node], *, ends: bool = True) -> None:
        """Give all pages up.

        Args:
            path: the request's nodes.
            twins: as of `leave`, with those that the request has just published.
            ends: whether others are expected to go on from where the request ends.
        """
        self._give_up(range(self.first, len(self.pages)), path, twins, ends=ends)
        self.first, self.pages = 0, []

    def _give_up(self, indices: range, path: Sequence[Node], twins: Sequence[Node], *, ends: bool) -> None:
        windows = self._windows
        for index in indices:
            page, self.pages[index] = self.pages[index], NOWHERE
            if index < len(path):
                windows.leave(path[index], is_end=ends)
            elif index < len(twins) and twins[index].window < 0:
                windows.fill(twins[index], page)
                windows.leave(twins[index], is_end=True)  # it was missed once
            else:
                windows.pool.give([page])

    def _next_leave(self) -> int:
        """Return the position from which on no query sees the first page that is held."""
        return (self.first + 1) * self._windows.page_size + self._windows.reach
