"""SlotStates: the recurrent states of a device's slots, and how far the host knows each to be.

    0 ........ anchor ........ firm ........ end
               the state S     no chunk      what the tail holds: a chunk
               is behind it    begins before begins here at the latest

`anchor` is the last multiple of `BLOCK` up to `firm`. Rows that were planned one behind the other are laid out in that
order, so the host's copy runs ahead of the device's, as that of the page table does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sluice.attention.states import BLOCK, StatePool, StateRows, anchor_of
from sluice.runner.inputs import Ints
from sluice.types import BatchPlan, Chunk


class SlotStates:
    """The states of the slots, and records.

    Args:
        pool: with nothing in it.
        num_slots: of the pool, without those that pad.
        num_records: of the pool.
    """

    def __init__(self, pool: StatePool, num_slots: int, num_records: int) -> None:
        self.pool = pool
        self._num_records = num_records
        self._firm: Ints = np.zeros(num_slots, dtype=np.int64)
        self._ends: Ints = np.full(num_slots, -1, dtype=np.int64)
        """-1: nothing was opened in the slot."""

    def problem_of(self, plan: BatchPlan) -> str | None:
        """Return why a plan without the chunks that slices complete cannot be run. Its slots are in range."""
        for slot, record in plan.saved:
            if not (0 <= slot < len(self._ends) and self._ends[slot] >= 0):
                return f"slot {slot} has no state to save"
            if not 0 <= record < self._num_records:
                return f"record {record} of {self._num_records}"
        opened: dict[int, int] = {}
        for new in plan.new_slots:
            if (new.cached > 0) != (new.record is not None) or new.cached % BLOCK:
                return f"slot {new.slot} begins behind {new.cached} tokens with record {new.record}"
            if new.record is not None and not 0 <= new.record < self._num_records:
                return f"record {new.record} of {self._num_records}"
            opened[new.slot] = new.cached
        begun = [part.chunk for part in plan.slices if part.is_resident and part.first == 0]
        chunks = [*plan.chunks, *begun]
        exported = [record for chunk in chunks for _, record in chunk.checkpoints]
        if len(set(exported)) < len(exported):
            return f"records {sorted(exported)} are made, some of them twice"
        return next(filter(None, (self._problem_of(chunk, opened) for chunk in chunks)), None)

    def _problem_of(self, chunk: Chunk, opened: dict[int, int]) -> str | None:
        """Return what is wrong with a chunk: law 24, that it begins where the state of its slot is known."""
        cached = opened.get(chunk.slot)
        if cached is None:
            firm, end = int(self._firm[chunk.slot]), int(self._ends[chunk.slot])
        else:
            firm = end = cached
        if not firm <= chunk.start <= end:
            return f"a chunk begins at {chunk.start}, and the state of slot {chunk.slot} is known from {firm} to {end}"
        if not firm <= chunk.firm <= chunk.end <= chunk.firm + self.pool.reach:
            return (
                f"{chunk.firm} tokens are firm behind a chunk that ends at {chunk.end}; {firm} were, and a state"
                f" reaches {self.pool.reach} tokens behind those"
            )
        before = anchor_of(firm)
        for position, record in chunk.checkpoints:
            if position % BLOCK or not before < position <= anchor_of(chunk.firm):
                return f"a record at {position} of a chunk that moves the anchor from {before} to {chunk.firm}"
            if not 0 <= record < self._num_records:
                return f"record {record} of {self._num_records}"
            before = position
        return None

    def apply(self, plan: BatchPlan) -> None:
        """Take over the new slots of a checked plan on the host."""
        for new in plan.new_slots:
            self._firm[new.slot] = self._ends[new.slot] = new.cached

    def rows(self, chunks: Sequence[Chunk]) -> StateRows:
        """Return where the rows of chunks find their states, and move the slots to behind them. The plan that they
        belong to was applied."""
        slots = [chunk.slot for chunk in chunks]
        before = self._firm[slots].tolist()
        self._firm[slots] = [chunk.firm for chunk in chunks]
        self._ends[slots] = [chunk.end for chunk in chunks]
        return StateRows(
            tuple(slots),
            tuple(chunk.start for chunk in chunks),
            tuple(anchor_of(firm) for firm in before),
            tuple(anchor_of(chunk.firm) for chunk in chunks),
            tuple(
                (row, position, record)
                for row, chunk in enumerate(chunks)
                if chunk.checkpoints
                for position, record in chunk.checkpoints
            ),
        )

    def save(self, saved: Iterable[tuple[int, int]]) -> None:
        """Do the device's part of `BatchPlan.saved`. Runs on the compute queue, before `open`."""
        for slot, record in saved:
            self.pool.save(slot, record)

    def open(self, plan: BatchPlan) -> None:
        """Give new slots the state that they begin with. Runs on the compute queue, before the forward."""
        for new in plan.new_slots:
            self.pool.open(new.slot, new.cached, new.record)
