"""The ring: one owner a buffer, tickets that cannot be reused, fences that are waited for."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slow import examples
from sluice.kv.ring import BufferState, DeviceRing


def test_a_buffer_comes_back_with_the_fence_of_its_last_reader() -> None:
    """A load into a buffer that queued work still reads would change what that work sees."""
    ring: DeviceRing[str] = DeviceRing(1)
    first = ring.take()
    assert first is not None
    assert first.fence is None
    assert ring.take() is None
    ring.loaded(first.ticket)
    ring.use(first.ticket)
    ring.release(first.ticket, "event 7")
    second = ring.take()
    assert second is not None
    assert (second.buffer, second.fence) == (first.buffer, "event 7")
    assert second.ticket != first.ticket


def test_an_old_ticket_reads_nothing() -> None:
    """A ticket that is used after its release would read another block's keys."""
    ring: DeviceRing[str] = DeviceRing(1)
    old = ring.take()
    assert old is not None
    ring.loaded(old.ticket)
    ring.use(old.ticket)
    ring.release(old.ticket, None)
    new = ring.take()
    assert new is not None
    ring.loaded(new.ticket)
    with pytest.raises(AssertionError, match="is over"):
        ring.use(old.ticket)


def test_nothing_is_read_before_it_is_loaded() -> None:
    """Reading a buffer that is still being filled gives half of one block and half of another."""
    ring: DeviceRing[str] = DeviceRing(2)
    taken = ring.take()
    assert taken is not None
    with pytest.raises(AssertionError, match="is loading"):
        ring.use(taken.ticket)


def test_nothing_is_released_that_was_not_read() -> None:
    """A buffer would be filled again, though its ticket is still to be read."""
    ring: DeviceRing[str] = DeviceRing(1)
    taken = ring.take()
    assert taken is not None
    ring.loaded(taken.ticket)
    with pytest.raises(AssertionError, match="is ready"):
        ring.release(taken.ticket, None)


def test_the_check_notices_a_ticket_that_would_be_given_again() -> None:
    ring: DeviceRing[str] = DeviceRing(2)
    ring.take()
    ring.check()
    ring._next_ticket -= 1
    with pytest.raises(AssertionError, match="were never given"):
        ring.check()


def test_an_abandoned_load_keeps_its_buffer_until_it_is_over() -> None:
    """A buffer given away while an abandoned load is still writing into it would be overwritten."""
    ring: DeviceRing[str] = DeviceRing(1)
    taken = ring.take()
    assert taken is not None
    ring.abandon(taken.ticket)
    assert ring.take() is None
    ring.loaded(taken.ticket)
    assert ring.take() is not None


def test_a_ring_without_buffers_is_refused() -> None:
    """Nothing could ever pass through it."""
    with pytest.raises(ValueError, match="at least one buffer, got 0"):
        DeviceRing(0)


class RingMachine(RuleBasedStateMachine):
    """Random loads, reads and changes of mind, against a slow model: which buffer holds which ticket, and its state."""

    def __init__(self) -> None:
        super().__init__()
        self.ring: DeviceRing[int] = DeviceRing(3)
        self.model: dict[int, tuple[int, BufferState]] = {}
        self.fences: dict[int, int | None] = dict.fromkeys(range(3))
        self.seen: set[int] = set()
        self.clock = 0

    def of(self, *states: BufferState) -> int | None:
        return next((ticket for ticket, (_, state) in self.model.items() if state in states), None)

    @rule()
    def take(self) -> None:
        taken = self.ring.take()
        used = {buffer for buffer, _ in self.model.values()}
        assert (taken is None) == (len(used) == 3)
        if taken is not None:
            assert taken.buffer not in used
            assert taken.ticket not in self.seen
            assert taken.fence == self.fences[taken.buffer]
            self.seen.add(taken.ticket)
            self.model[taken.ticket] = taken.buffer, BufferState.LOADING

    @precondition(lambda self: self.of(BufferState.LOADING, BufferState.ABANDONED) is not None)
    @rule()
    def loaded(self) -> None:
        ticket = self.of(BufferState.LOADING, BufferState.ABANDONED)
        assert ticket is not None
        buffer, state = self.model[ticket]
        self.ring.loaded(ticket)
        if state is BufferState.LOADING:
            self.model[ticket] = buffer, BufferState.READY
        else:
            self.drop(ticket, None)

    @precondition(lambda self: self.of(BufferState.READY) is not None)
    @rule()
    def use(self) -> None:
        ticket = self.of(BufferState.READY)
        assert ticket is not None
        buffer, _ = self.model[ticket]
        assert self.ring.use(ticket) == buffer
        self.model[ticket] = buffer, BufferState.IN_USE

    @precondition(lambda self: self.of(BufferState.IN_USE) is not None)
    @rule()
    def release(self) -> None:
        ticket = self.of(BufferState.IN_USE)
        assert ticket is not None
        self.clock += 1
        self.ring.release(ticket, self.clock)
        self.drop(ticket, self.clock)

    @precondition(lambda self: self.of(BufferState.LOADING, BufferState.READY) is not None)
    @rule()
    def abandon(self) -> None:
        ticket = self.of(BufferState.LOADING, BufferState.READY)
        assert ticket is not None
        buffer, state = self.model[ticket]
        self.ring.abandon(ticket)
        if state is BufferState.READY:
            self.drop(ticket, None)
        else:
            self.model[ticket] = buffer, BufferState.ABANDONED

    def drop(self, ticket: int, fence: int | None) -> None:
        buffer, _ = self.model.pop(ticket)
        self.fences[buffer] = fence

    @invariant()
    def agree(self) -> None:
        self.ring.check()
        assert self.ring.tickets() == {ticket: state for ticket, (_, state) in self.model.items()}
        assert self.ring.num_free == 3 - len(self.model)


TestRing = RingMachine.TestCase
TestRing.settings = settings(examples(20), stateful_step_count=30)
