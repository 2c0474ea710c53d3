"""Recurrent states of the shadow runner: rolling hashes of tokens, kept as a device keeps states."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sluice.types import BatchPlan, Chunk

SPOILT = -1
"""What a slot has whose state is that of no tokens."""


def added(state: int, tokens: Iterable[int]) -> int:
    """Return a state behind more tokens."""
    return zlib.crc32(array("q", tokens).tobytes(), state) if state != SPOILT else SPOILT


@dataclass
class _SlotState:
    """What a slot keeps."""

    state: int = SPOILT
    """At the anchor."""
    anchor: int = 0
    tail: list[int] = field(default_factory=list)
    """The tokens from the anchor on."""


class ShadowStates:
    """The states of slots, and records.

    A row's state is right only if its slot was opened from nothing or from the right record, if every chunk began where
    the one before had left the state, and if the anchor never moved over a token that was computed again.

    Args:
        block: tokens between two places of an anchor.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._slots: dict[int, _SlotState] = {}
        self._records: dict[int, int] = {}
        self._begun: dict[int, Chunk] = {}
        """Slot -> its chunk of which some layers were computed."""

    def begin(self, plan: BatchPlan) -> None:
        """Save and open slots, as a plan says."""
        for slot, record in plan.saved:
            kept = self._slots.get(slot, _SlotState())
            self._records[record] = SPOILT if slot in self._begun else kept.state
        for new in plan.new_slots:
            state = 0 if new.record is None else self._records.get(new.record, SPOILT)
            self._slots[new.slot] = _SlotState(state, new.cached)
            self._begun.pop(new.slot, None)

    def compute_layers(self, chunk: Chunk) -> None:
        """Note that some layers of a chunk moved their states, and others have not."""
        self._begun[chunk.slot] = chunk

    def take_in(self, chunk: Chunk, tokens: Sequence[int]) -> None:
        """Compute a chunk, all of whose layers are done now, and make its records."""
        kept = self._slots.setdefault(chunk.slot, _SlotState())
        if self._begun.pop(chunk.slot, chunk) != chunk or not 0 <= chunk.start - kept.anchor <= len(kept.tail):
            kept.state = SPOILT
        kept.tail[max(0, chunk.start - kept.anchor) :] = tokens
        records = dict(chunk.checkpoints)
        target = chunk.firm // self._block * self._block
        while kept.anchor + self._block <= target:
            kept.state = added(kept.state, kept.tail[: self._block])
            del kept.tail[: self._block]
            kept.anchor += self._block
            if kept.anchor in records:
                self._records[records.pop(kept.anchor)] = kept.state
        for record in records.values():  # they are behind no anchor of this chunk
            self._records[record] = SPOILT

    def is_behind(self, slot: int, tokens: Sequence[int]) -> bool:
        """Return whether a slot's state is the one that `tokens` leave, which end with the slot's last chunk."""
        kept = self._slots[slot]
        return kept.state == added(0, tokens[: kept.anchor]) and kept.tail == list(tokens[kept.anchor :])
