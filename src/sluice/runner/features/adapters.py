"""Adapters: which one the tokens of a request are computed with.

It does its work in the forward and not behind it: a step whose rows have adapters says so in `HostBatch.adapters`, and
the model's layers add what these give (`models/blocks/lora.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.runner.features.base import Feature, StagedFeature
from sluice.runner.inputs import HostBatch, Ints, Ints32
from sluice.types import NewSlot

NO_ADAPTER = -1
SlotOf = Callable[[str], int | None]
"""Returns the slot of the adapter with a digest; None: it is not loaded."""


def none_loaded(digest: str) -> int | None:
    """Return None: the model takes no adapters."""
    return None


class Adapters(Feature):
    """Keeps the adapter of each slot's request.

    Args:
        slot_of: of the bank of the model.
    """

    def __init__(self, num_slots: int, slot_of: SlotOf = none_loaded) -> None:
        self._slot_of = slot_of
        self._of_slots: Ints32 = np.full(num_slots, NO_ADAPTER, dtype=np.int32)
        self._used: set[int] = set()
        """Slots whose requests have one."""

    def problem(self, new: NewSlot) -> str | None:
        digest = new.submit.adapter
        if digest and self._slot_of(digest) is None:
            return f"request {new.request_id} needs the adapter {digest}, which is not loaded"
        return None

    def forget(self, slot: int) -> None:
        self._of_slots[slot] = NO_ADAPTER
        self._used.discard(slot)

    def fill(self, new: NewSlot) -> None:
        found = self._slot_of(new.submit.adapter) if new.submit.adapter else None
        if found is not None:
            self._of_slots[new.slot] = found
            self._used.add(new.slot)

    def stage(self, host: HostBatch) -> StagedFeature | None:
        return None

    def of_tokens(self, slots: Ints, lengths: Ints) -> Ints32 | None:
        """Return the slot of each token's adapter [N]; None if no token has one.

        Args:
            slots: [B] of the rows.
            lengths: [B] tokens of each row.
        """
        if not self._used:
            return None
        of_rows = self._of_slots[slots]
        if (of_rows == NO_ADAPTER).all():
            return None
        return np.repeat(of_rows, lengths)
