"""Records: copies of recurrent states behind cached prefixes, and which node of the prefix tree has which.

The pages of a prefix are no use to a layer with a recurrent state. It needs the state that exactly these tokens have
left, so a request goes on from a node that has a *record* (`usable.py`). A record is

    free       nothing is in it
    made       a plan in flight writes it, or has written it, and no node has it yet
    of a node  it was written behind exactly the tokens up to the node's end. A node has one at most

What is in a record is copied when a plan opens a slot from it, so nothing holds it any longer than that plan is made.
If none is free, one is taken from a node: of those used least recently, the one whose nearest ancestor with a record is
closest, since fewest tokens are computed again without it. Recency alone would give up the places where prompts part,
which are used rarely and save most.
"""

from __future__ import annotations

from itertools import islice

from sluice.kv.nodes import NOWHERE, Node
from sluice.types import StateLimits

CANDIDATES = 64
"""Nodes that are compared, at most, to take a record from one."""


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
        self._nodes: dict[Node, int] = {}
        """Node -> the tokens up to its end; those used least recently first."""
        self._read: set[Node] = set()
        """Nodes from which the plan that is being made opens slots."""

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
            found = self._least_useful()
            if found is None:
                return None
            self.forget(found)
        return self._free.pop()

    def give(self, record: int) -> None:
        """Give back a record that no node has."""
        assert record not in self._free, f"record {record} is given back twice"
        self._free.append(record)

    def attach(self, node: Node, position: int, record: int) -> None:
        """Let a node of the device have a record that was made behind `position` tokens; or free it, if the node has
        one already."""
        assert node.page >= 0 and position % self.grid == 0, f"a record at {position} of {node}"
        if node.record >= 0:
            self.give(record)
            return
        node.record = record
        self._nodes[node] = position

    def forget(self, node: Node) -> None:
        """Free the record of a node."""
        del self._nodes[node]
        self._read.discard(node)
        record, node.record = node.record, NOWHERE
        self.give(record)

    def read(self, node: Node) -> int:
        """Return the record of a node, from which the plan that is being made opens a slot."""
        self._nodes[node] = self._nodes.pop(node)
        self._read.add(node)
        return node.record

    def planned(self) -> None:
        """Note that the plan is made: what it reads may be given to others by the next one."""
        self._read.clear()

    def _least_useful(self) -> Node | None:
        """Return the node to take a record from: not one of the half that was used most recently, if there are
        several."""
        count = min(CANDIDATES, (len(self._nodes) + 1) // 2)
        found, least = None, 0
        for node in islice((node for node in self._nodes if node not in self._read), count):
            distance = self._distance(node, least if found is not None else None)
            if found is None or distance < least:
                found, least = node, distance
        return found

    def _distance(self, node: Node, most: int | None) -> int:
        """Return the pages between a node and its nearest ancestor with a record, or `most` if there are as many."""
        distance, above = 1, node.parent
        while above is not None and above.parent is not None and above.record < 0:
            if distance == most:
                break
            distance, above = distance + 1, above.parent
        return distance
