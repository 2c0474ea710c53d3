"""From the entries of an index to what a prefix tree can be made of."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.tiers.entry import Entry
from sluice.types import StoredPage


def restored(entries: Mapping[int, Entry]) -> list[StoredPage]:
    """The pages that hang together from a root, parents before children, otherwise the oldest store first.

    A page stored twice counts once, from its younger store; one whose parent is missing counts not at all.
    """
    slots: dict[bytes, int] = {}
    for slot in sorted(entries, key=lambda slot: entries[slot].number):
        slots[entries[slot].key.digest] = slot
    children: dict[bytes, list[int]] = {}
    for slot in slots.values():
        children.setdefault(entries[slot].key.parent, []).append(slot)
    pending = sorted(children.get(b"", ()), key=lambda slot: entries[slot].number)
    found: list[StoredPage] = []
    for slot in pending:  # it grows meanwhile
        entry = entries[slot]
        found.append(StoredPage(slot, entry.key, entry.checksums.whole))
        pending += children.get(entry.key.digest, ())
    return found
