"""How much of a cached prefix a request can take: the one place that decides where a prefix ends."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.nodes import Node


def usable(path: Sequence[Node], window_pages: int, *, record_every: int = 0) -> int:
    """Return the most nodes, from the beginning of a matched path on, behind which a request can go on.

    Args:
        path: nodes with a page of the device.
        window_pages: how many of the last nodes must have a page of the layers with a window, as far as there are so
            many; 0: no layer has pages of its own.
        record_every: if layers have recurrent states, the last node must have a record, and one node in so many may
            have one; 0: no layer has a state.
    """
    count = whole = len(path)  # the nodes from `whole` to `count` have pages of windows
    while True:
        if record_every:
            count -= count % record_every
            while count and path[count - 1].record < 0:
                count -= record_every
        first = max(0, count - window_pages)
        hole = next((index for index in range(first, min(whole, count)) if path[index].window < 0), None)
        if hole is None:
            return count
        # All ends that have this hole in their window are passed over at once, most of them without a look.
        count, whole = hole, first
