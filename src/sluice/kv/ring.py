"""DeviceRing: a fixed number of buffers through which KV of any length passes, a block at a time.

    free --take--> loading --loaded--> ready --use--> in use --release--> free, behind a fence
                      |                  |
                      +----- abandon ----+--> free, once the load is over

Every load has a *ticket*. Tickets count up and are never used twice, so an old one cannot read what came after it. A
buffer that was released may still be read by work that is queued on the device: the *fence* says until when, and the
next load into the buffer waits for it. What a fence is, is the caller's business.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Fence = TypeVar("Fence")


class BufferState(Enum):
    """Where a buffer is between two loads."""

    FREE = "free"
    LOADING = "loading"
    READY = "ready"
    IN_USE = "in use"
    ABANDONED = "abandoned"


class Taken(NamedTuple, Generic[Fence]):
    """A buffer to fill."""

    ticket: int
    buffer: int
    fence: Fence | None
    """Nothing may be written before it; None: write at once."""


class DeviceRing(Generic[Fence]):
    """Tracks which load may write each buffer, and which may be read.

    Buffers are handed out in the order in which they were released, so a load waits for the oldest fence.
    """

    def __init__(self, num_buffers: int) -> None:
        if num_buffers < 1:
            raise ValueError(f"a ring needs at least one buffer, got {num_buffers}")
        self.num_buffers = num_buffers
        self._next_ticket = 0
        self._free: deque[tuple[int, Fence | None]] = deque((buffer, None) for buffer in range(num_buffers))
        self._states = [BufferState.FREE] * num_buffers
        self._buffers: dict[int, int] = {}
        """Ticket -> buffer, of every load whose buffer is not free."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def tickets(self) -> dict[int, BufferState]:
        """Return the state of every load whose buffer is not free."""
        return {ticket: self._states[buffer] for ticket, buffer in self._buffers.items()}

    def take(self) -> Taken[Fence] | None:
        """Return a buffer to fill, or None if none is free."""
        if not self._free:
            return None
        buffer, fence = self._free.popleft()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._buffers[ticket] = buffer
        self._states[buffer] = BufferState.LOADING
        return Taken(ticket, buffer, fence)

    def loaded(self, ticket: int) -> None:
        """Note that a load is over, well or not. The buffer of an abandoned one is free now."""
        buffer = self._buffer(ticket, BufferState.LOADING, BufferState.ABANDONED)
        if self._states[buffer] is BufferState.ABANDONED:
            self._set_free(ticket, None)
        else:
            self._states[buffer] = BufferState.READY

    def use(self, ticket: int) -> int:
        """Return the buffer, which is read from now on."""
        buffer = self._buffer(ticket, BufferState.READY)
        self._states[buffer] = BufferState.IN_USE
        return buffer

    def release(self, ticket: int, fence: Fence | None) -> None:
        """Give a buffer back. Reads of it that are queued end before `fence`."""
        self._buffer(ticket, BufferState.IN_USE)
        self._set_free(ticket, fence)

    def abandon(self, ticket: int) -> None:
        """Give up a load before it is read."""
        buffer = self._buffer(ticket, BufferState.LOADING, BufferState.READY)
        if self._states[buffer] is BufferState.READY:
            self._set_free(ticket, None)
        else:
            self._states[buffer] = BufferState.ABANDONED

    def check(self) -> None:
        """Check the laws: every buffer is free or has one ticket, as its state says, and no ticket is used twice."""
        held = sorted(self._buffers.values())
        free = sorted(buffer for buffer, _ in self._free)
        assert sorted(held + free) == list(range(self.num_buffers)), f"buffers held {held}, free {free}"
        states = self._states
        wrong = [buffer for buffer, state in enumerate(states) if (state is BufferState.FREE) != (buffer in free)]
        assert not wrong, f"buffers {wrong} are {[states[buffer] for buffer in wrong]}, free are {free}"
        late = [ticket for ticket in self._buffers if ticket >= self._next_ticket]
        assert not late, f"tickets {late} were never given"

    def _buffer(self, ticket: int, *allowed: BufferState) -> int:
        buffer = self._buffers.get(ticket)
        assert buffer is not None, f"ticket {ticket} is over"
        assert self._states[buffer] in allowed, f"ticket {ticket} in buffer {buffer} is {self._states[buffer].value}"
        return buffer

    def _set_free(self, ticket: int, fence: Fence | None) -> None:
        buffer = self._buffers.pop(ticket)
        self._states[buffer] = BufferState.FREE
        self._free.append((buffer, fence))
