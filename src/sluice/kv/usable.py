"""How much of a cached prefix a request can take: the one place that decides where a prefix ends."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.nodes import Node


def usable(path: Sequence[Node], window_pages: int) -> int:
    """Return the most nodes, from the beginning of a matched path on, behind which a request can go on.

    Args:
        path: nodes with a page of the device.
        window_pages: how many of the last nodes must have a page of the layers with a window, as far as there are so
            many; 0: no layer has pages of its own.
    """
    count = index = len(path)
    while index > max(0, count - window_pages):
        index -= 1
        if path[index].window < 0:
            count = index  # all that end behind this node, and have been looked at, need its page
    return count
