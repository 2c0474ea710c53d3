"""DeviceRing: a fixed number of staging slots through which KV of any length passes.

    free --take--> loading --landed--> ready --use--> in use --release--> free, behind a fence
                      |                  |
                      +----- abandon ----+--> free, once the load has landed

Every load has a *ticket*: tickets count up and are never used twice, so that whoever holds an old one cannot read
what came after it. A slot that was released may still be read by work that is queued on the device; the *fence* says
until when, and whoever fills the slot next waits for it. What a fence is, is the caller's business.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Fence = TypeVar("Fence")


class SlotState(Enum):
    """Where a slot is between two loads."""

    FREE = "free"
    LOADING = "loading"
    READY = "ready"
    IN_USE = "in use"
    ABANDONED = "abandoned"


class Taken(NamedTuple, Generic[Fence]):
    """A slot to fill."""

    ticket: int
    slot: int
    fence: Fence | None
    """Nothing may be written before it; None: now."""


class DeviceRing(Generic[Fence]):
    """Who may write and who may read each staging slot.

    Slots are handed out in the order in which they were released, so the fence that is waited for is the oldest.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a ring needs at least one slot, got {num_slots}")
        self.num_slots = num_slots
        self._next_ticket = 0
        self._free: deque[tuple[int, Fence | None]] = deque((slot, None) for slot in range(num_slots))
        self._states = [SlotState.FREE] * num_slots
        self._slots: dict[int, int] = {}
        """Ticket -> slot, of every load whose slot is not free."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def tickets(self) -> dict[int, SlotState]:
        """The state of every load whose slot is not free."""
        return {ticket: self._states[slot] for ticket, slot in self._slots.items()}

    def take(self) -> Taken[Fence] | None:
        """A slot to fill, or None if none is free."""
        if not self._free:
            return None
        slot, fence = self._free.popleft()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._slots[ticket] = slot
        self._states[slot] = SlotState.LOADING
        return Taken(ticket, slot, fence)

    def landed(self, ticket: int) -> None:
        """The load is over, well or not. An abandoned one's slot is free now."""
        slot = self._slot(ticket, SlotState.LOADING, SlotState.ABANDONED)
        if self._states[slot] is SlotState.ABANDONED:
            self._free_slot(ticket, None)
        else:
            self._states[slot] = SlotState.READY

    def use(self, ticket: int) -> int:
        """The slot, to be read from now on."""
        slot = self._slot(ticket, SlotState.READY)
        self._states[slot] = SlotState.IN_USE
        return slot

    def release(self, ticket: int, fence: Fence | None) -> None:
        """No further reads; those that are queued end before `fence`."""
        self._slot(ticket, SlotState.IN_USE)
        self._free_slot(ticket, fence)

    def abandon(self, ticket: int) -> None:
        """Nobody will read this load."""
        slot = self._slot(ticket, SlotState.LOADING, SlotState.READY)
        if self._states[slot] is SlotState.READY:
            self._free_slot(ticket, None)
        else:
            self._states[slot] = SlotState.ABANDONED

    def check(self) -> None:
        """The laws: every slot is free or has one ticket, its state says which, and tickets are never reused."""
        held = sorted(self._slots.values())
        free = sorted(slot for slot, _ in self._free)
        assert sorted(held + free) == list(range(self.num_slots)), f"slots held {held}, free {free}"
        wrong = [slot for slot in range(self.num_slots) if (self._states[slot] is SlotState.FREE) != (slot in free)]
        assert not wrong, f"slots {wrong} are {[self._states[slot] for slot in wrong]}, free are {free}"
        late = [ticket for ticket in self._slots if ticket >= self._next_ticket]
        assert not late, f"tickets {late} were never given"

    def _slot(self, ticket: int, *allowed: SlotState) -> int:
        slot = self._slots.get(ticket)
        assert slot is not None, f"ticket {ticket} is over"
        assert self._states[slot] in allowed, f"ticket {ticket} in slot {slot} is {self._states[slot].value}"
        return slot

    def _free_slot(self, ticket: int, fence: Fence | None) -> None:
        slot = self._slots.pop(ticket)
        self._states[slot] = SlotState.FREE
        self._free.append((slot, fence))
