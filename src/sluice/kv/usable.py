"""How much of a cached prefix a request can take: the one place that decides where a prefix ends."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.nodes import Node


def usable(path: Sequence[Node], window_pages: int, *, needs_record: bool = False) -> int:
    """Return the most nodes, from the beginning of a matched path on, behind which a request can go on.

    Args:
        path: nodes with a page of the device.
        window_pages: how many of the last nodes must have a page of the layers with a window, as far as there are so
            many; 0: no layer has pages of its own.
        needs_record: whether layers have recurrent states, so that the last node must have a record.
    """
    count = index = len(path)
    while True:
        while needs_record and count and path[count - 1].record < 0:
            count -= 1
        index = min(index, count)
        if index <= max(0, count - window_pages):
            return count
        index -= 1
        if path[index].window < 0:
            count = index  # all that end behind this node, and have been looked at, need its page
