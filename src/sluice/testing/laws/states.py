"""Laws of recurrent states: 24 and 25."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.kv.nodes import Node
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import TOKEN_BYTES, LawBroken
from sluice.testing.laws.view import View
from sluice.types import BatchPlan, BatchResult, Chunk


def records_are_conserved(view: View) -> None:
    """25, for numbers: every record is free, of one node that has a page, or being made: exactly one of them."""
    planner, records = view.state.states, view.kv.records
    if planner is None or records is None:
        return
    held = [node.record for node in view.nodes if node.record >= 0]
    made = [record for request in view.state.requests.values() for _, record in request.records]
    owned = [*records.free_records, *held, *made]
    is_counted = len(owned) + planner.num_saves == records.num_records
    if not is_counted or len(set(owned)) < len(owned) or len(held) != records.num_held:
        raise LawBroken(
            f"law 25: records {dict(Counter(owned))} and {planner.num_saves} to be saved, of {records.num_records};"
            f" nodes have {records.num_held}"
        )
    for node in view.nodes:
        if node.record >= 0 and not (node.page >= 0 and records.position_of(node) % records.grid == 0):
            raise LawBroken(f"law 25: {node} has a record at {records.position_of(node)}, of {records.grid}")


@dataclass
class _Slot:
    """What a slot's state is, when all that is planned was computed."""

    firm: int
    end: int
    tokens: bytes
    """The firm ones."""
    is_spoilt: bool = False


@dataclass
class _Record:
    """What is in a record."""

    tokens: bytes
    chunk: Chunk | None = None
    """That made it; None: a slot was saved."""
    is_committed: bool = False


class StateLives:
    """24. A chunk begins where the state of its slot is known: not before the firm tokens, and not behind the computed
    ones. A slot is opened from nothing, or from a record that was made behind exactly the tokens that are cached, by a
    step that was committed.

    25. The record of a node was made behind exactly the tokens up to the node's end, by a step that was committed.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._records: dict[int, _Record] = {}

    def planned(self, state: SchedulerState, plan: BatchPlan) -> None:
        """Follow a plan."""
        if state.states is None:
            return
        for slot, record in plan.saved:
            kept = self._slots[slot]
            if kept.is_spoilt:
                raise LawBroken(f"law 25: slot {slot} is saved, of which a row failed")
            self._make(state, record, kept.tokens, kept.firm)
        for new in plan.new_slots:
            tokens = state.requests[new.request_id].tokens[: new.cached].tobytes()
            self._slots[new.slot] = _Slot(new.cached, new.cached, tokens)
            if new.record is None and new.cached:
                raise LawBroken(f"law 24: slot {new.slot} begins behind {new.cached} tokens without a record")
            if new.record is not None:
                found = self._records.get(new.record)
                if found is None or not found.is_committed or found.tokens != tokens:
                    raise LawBroken(f"law 24: {new} begins from what is no record of its tokens")
        begun = [each.chunk for each in plan.slices if each.is_resident and each.first == 0]
        for chunk in (*plan.whole_chunks, *begun):
            self._follow(state, chunk)

    def _follow(self, state: SchedulerState, chunk: Chunk) -> None:
        kept = self._slots[chunk.slot]
        if not (kept.firm <= chunk.start <= kept.end and kept.firm <= chunk.firm <= chunk.end):
            raise LawBroken(f"law 24: {chunk} in a slot of {kept.firm} firm and {kept.end} computed tokens")
        tokens = state.requests[chunk.request_id].tokens[: chunk.firm].tobytes()
        if not tokens.startswith(kept.tokens):
            raise LawBroken(f"law 24: tokens that were firm in slot {chunk.slot} have changed")
        for position, record in chunk.checkpoints:
            self._make(state, record, tokens, position, chunk)
        self._slots[chunk.slot] = _Slot(chunk.firm, chunk.end, tokens, kept.is_spoilt)

    def _make(
        self, state: SchedulerState, record: int, tokens: bytes, position: int, chunk: Chunk | None = None
    ) -> None:
        assert state.states is not None, "a record without states"
        anchor = position // state.states.block * state.states.block
        self._records[record] = _Record(tokens[: anchor * TOKEN_BYTES], chunk)

    def committed(self, plan: BatchPlan, result: BatchResult) -> None:
        """Follow the end of a plan."""
        failed = {error.row for error in result.errors}
        for row, chunk in enumerate(plan.chunks):
            self._end(chunk, is_well=row not in failed)
        for _, record in plan.saved:
            self._records[record].is_committed = True

    def failed(self, plan: BatchPlan) -> None:
        """Follow a plan that failed."""
        for chunk in (*plan.chunks, *(each.chunk for each in plan.slices)):
            self._end(chunk, is_well=False)

    def _end(self, chunk: Chunk, *, is_well: bool) -> None:
        kept = self._slots.get(chunk.slot)
        if kept is None:
            return
        kept.is_spoilt |= not is_well
        for _, record in chunk.checkpoints:
            made = self._records[record]
            if made.chunk is chunk:  # a record of a failed request may be made again before its chunk ends
                made.is_committed = not kept.is_spoilt

    def check(self, view: View) -> None:
        """Compare the records of nodes with what was made."""
        records = view.kv.records
        for node in view.nodes if records is not None else ():
            if node.record < 0:
                continue
            made = self._records.get(node.record)
            if made is None or not made.is_committed or made.tokens != _tokens_of(node):
                raise LawBroken(f"law 25: {node} has a record that was not made behind its tokens")


def _tokens_of(node: Node) -> bytes:
    """Return the tokens up to a node's end."""
    parts: list[bytes] = []
    each: Node | None = node
    while each is not None and each.parent is not None:
        parts.append(each.key)
        each = each.parent
    return b"".join(reversed(parts))
