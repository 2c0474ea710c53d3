"""How much of a cached prefix a request can take: the one place that decides where a prefix ends."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.nodes import Node


def usable(path: Sequence[Node], *, needs_record: bool) -> int:
    """Return the most nodes, from the beginning of a matched path on, behind which a request can go on.

    Args:
        path: nodes with a page of the device.
        needs_record: whether layers have recurrent states, so that the last node must have a record.
    """
    count = len(path)
    while needs_record and count and path[count - 1].record < 0:
        count -= 1
    return count
