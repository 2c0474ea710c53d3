"""From the entries of an index to what a prefix tree can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.pagefile.entry import Entry, root_digest


@dataclass(frozen=True, slots=True)
class RestoredPage:
    """A page that a file holds."""

    slot: int
    parent: int
    """The slot of the page before it; -1: there is none."""
    extra_key: str
    tokens: bytes
    """int32 each"""


def restored(entries: Mapping[int, Entry]) -> list[RestoredPage]:
    """The pages that hang together from a root, parents before children, otherwise the oldest store first.

    A page stored twice counts once, from its younger store; one whose parent is missing counts not at all.
    """
    slots: dict[bytes, int] = {}
    for slot in sorted(entries, key=lambda slot: entries[slot].number):
        slots[entries[slot].name.digest] = slot
    children: dict[bytes, list[int]] = {}
    for slot in slots.values():
        children.setdefault(entries[slot].name.parent, []).append(slot)
    pending = [(slot, -1) for slot, entry in entries.items() if entry.name.parent == root_digest(entry.name.extra_key)]
    pending = [(slot, parent) for slot, parent in pending if slots[entries[slot].name.digest] == slot]
    pending.sort(key=lambda pair: entries[pair[0]].number)
    found: list[RestoredPage] = []
    for slot, parent in pending:  # it grows meanwhile
        name = entries[slot].name
        found.append(RestoredPage(slot, parent, name.extra_key, name.tokens))
        pending += [(child, slot) for child in children.get(name.digest, ())]
    return found
