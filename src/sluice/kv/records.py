"""Records: copies of recurrent states behind cached prefixes, and which node of the prefix tree has which.

The pages of a prefix are no use to a layer with a recurrent state. It needs the state that exactly these tokens have
left, so a request goes on from a node that has a *record* (`usable.py`). A record is

    free       nothing is in it
    made       a plan in flight writes it, or has written it, and no node has it yet
    of a node  it was written behind exactly the tokens up to the node's end. A node has one at most

What is in a record is copied when a plan opens a slot from it, so nothing holds it any longer than that plan is made.
If none is free, some are taken from nodes. Records that follow each other without a fork are those of one conversation,
which goes on from the last one. So of those used least recently the first to go are the others, beginning with the one
closest to the record before it, since fewest tokens are computed again without it. Then go the last ones, and then
those where prompts part, which are used rarely and save most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sluice.kv.nodes import NOWHERE, Node
from sluice.types import StateLimits

CANDIDATES = 64
"""Nodes that are compared, at most, to take records from some."""
TAKEN = 8
"""One of so many of these loses its record: to compare them takes time."""
MOST_SEEN = 4096
"""Nodes behind one that are looked at, at most, for records when it gets its own."""


class Records:
    """The records of a device.

    Args:
        page_size: tokens of a page.
    """

    def __init__(self, limits: StateLimits, page_size: int) -> None:
        self.num_records = limits.num_records
        self.grid = limits.grid(page_size)
        """A record is behind a multiple of so many tokens."""
        self._page_size = page_size
        self._free = list(range(limits.num_records - 1, -1, -1))
        self._taken = bytearray(limits.num_records)
        self._nodes: dict[Node, int] = {}
        """Node -> the tokens up to its end; those used least recently first."""
        self._order = _Order()
        self._read: set[Node] = set()
        """Nodes from which the plan that is being made opens slots."""
        self.version = 0
        """Grows whenever a node gets or loses a record."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Records of nodes."""
        return len(self._nodes)

    @property
    def free_records(self) -> frozenset[int]:
        return frozenset(self._free)

    def position_of(self, node: Node) -> int:
        """Return the tokens behind which the record of a node was made."""
        return self._nodes[node]

    def take(self) -> int | None:
        """Take a record to be made, from a node if none is free. None: there is none to take."""
        if not self._free:
            for node in self._least_useful():
                self.forget(node)
        if not self._free:
            return None
        record = self._free.pop()
        self._taken[record] = 1
        return record

    def give(self, record: int) -> None:
        """Give back a record that no node has."""
        assert self._taken[record], f"record {record} is given back twice"
        self._taken[record] = 0
        self._free.append(record)

    def attach(self, node: Node, position: int, record: int) -> None:
        """Let a node have a record that was made behind `position` tokens; or free it, if the node has one already, or
        has left the device."""
        assert position % self.grid == 0, f"a record at {position} of {node}"
        if node.page < 0 or node.record >= 0:
            self.give(record)
            return
        node.record = record
        self.version += 1
        self._nodes[node] = position
        self._order.add(node)

    def forget(self, node: Node) -> None:
        """Free the record of a node."""
        del self._nodes[node]
        self._read.discard(node)
        self._order.remove(node)
        record, node.record = node.record, NOWHERE
        self.version += 1
        self.give(record)

    def read(self, node: Node) -> int:
        """Return the record of a node, from which the plan that is being made opens a slot."""
        self._nodes[node] = self._nodes.pop(node)
        self._read.add(node)
        return node.record

    def planned(self) -> None:
        """Note that the plan is made: what it reads may be given to others by the next one."""
        self._read.clear()

    def _least_useful(self) -> list[Node]:
        """Return nodes to take records from."""
        found = list(islice((node for node in self._nodes if node not in self._read), CANDIDATES))
        by_use = sorted(found, key=self._use)  # stable: least recently used first
        return by_use[: max(1, len(found) // TAKEN)]

    def _use(self, node: Node) -> tuple[int, int]:
        """Return a sort key of a node with a record: small if little is lost without it."""
        num_behind = len(self._order.behind[node])
        if num_behind != 1:
            return 1 + min(num_behind, 1), 0
        before = self._order.before[node]
        return 0, self._nodes[node] - (0 if before is None else self._nodes[before])


class _Order:
    """Which nodes with records follow each other. It is kept, since to look for them takes longer than to keep it."""

    def __init__(self) -> None:
        self.before: dict[Node, Node | None] = {}
        """Node -> its nearest ancestor with a record."""
        self.behind: dict[Node, set[Node]] = {}
        """Node -> those that have it as their nearest ancestor."""

    def add(self, node: Node) -> None:
        """Add a node that gets a record."""
        behind = set(_next_behind(node))
        for each in behind:
            self._move(each, node)
        self.behind[node] = behind
        self.before[node] = before = _nearest_before(node)
        if before is not None:
            self.behind[before].add(node)

    def remove(self, node: Node) -> None:
        """Remove a node that loses its record."""
        behind, before = self.behind.pop(node), self.before[node]
        for each in behind:
            self.before[each] = before
        if before is not None:
            self.behind[before].remove(node)
            self.behind[before] |= behind
        del self.before[node]

    def _move(self, node: Node, before: Node) -> None:
        """Note that a node has another nearest ancestor."""
        old = self.before[node]
        if old is not None:
            self.behind[old].remove(node)
        self.before[node] = before


def _nearest_before(node: Node) -> Node | None:
    """Return the nearest ancestor with a record."""
    each = node.parent
    while each is not None and each.record < 0:
        each = each.parent
    return each


def _next_behind(node: Node) -> Iterator[Node]:
    """Yield the nodes with records that follow a node directly."""
    seen, stack = 0, list(node.children.values())
    while stack and seen < MOST_SEEN:
        each = stack.pop()
        seen += 1
        if each.record >= 0:
            yield each
        else:
            stack += each.children.values()
