"""WindowLimits: the pages of layers that see a window of the latest positions."""

from __future__ import annotations

from typing import NamedTuple

CACHED_SHARE = 8
"""Pages of other layers for each page of windows beside those that running requests need: it keeps what others may find
again."""


class WindowLimits(NamedTuple):
    """Layers whose queries see the latest positions alone, and which have pages of their own."""

    length: int
    """Positions that a query sees at most, its own included."""
    num_pages: int
    """Pages of these layers on the device: at least as many as running requests need at once, so that none ever waits
    for one. More of them keep what other requests may find again."""
