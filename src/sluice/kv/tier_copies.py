"""Where a page of the prefix tree lies besides the device."""

from __future__ import annotations

NOWHERE = -1


class TierCopies:
    """One node's copies on the tiers behind the device, by the tier's place in their order."""

    __slots__ = ("children", "digest", "gone", "hits", "is_loading", "is_suspect", "pages", "readers", "storing")

    def __init__(self, num_tiers: int, digest: bytes) -> None:
        self.pages = [NOWHERE] * num_tiers
        """The page of each tier that holds it."""
        self.storing = [False] * num_tiers
        """A copy to that tier is on its way."""
        self.children = [0] * num_tiers
        """Children that have a copy on that tier, or on the way to it."""
        self.is_loading = False
        """Its copies are being read, to bring it to the device: they may not be given up."""
        self.readers = 0
        """Offloaded requests that attend to it where it lies: its copies may not be given up."""
        self.is_suspect = False
        """One who attended to its copies failed: nobody new may, and they are given up when nobody does."""
        self.hits = 0
        """Times it was taken from the cache."""
        self.gone = False
        """It has left the tree."""
        self.digest = digest
        """Of its namespace and of all tokens up to its end."""

    @property
    def is_read(self) -> bool:
        """Somebody reads its copies, so nobody may overwrite them."""
        return self.is_loading or self.readers > 0

    @property
    def is_stored(self) -> bool:
        """Some tier holds it."""
        return any(page != NOWHERE for page in self.pages)

    @property
    def is_kept(self) -> bool:
        """Some tier holds it, or will, if nothing fails."""
        return self.is_stored or any(self.storing)
