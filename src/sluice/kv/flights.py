"""Copies between the device and the tiers behind it: those of the next plan, and those on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sluice.kv.nodes import Node
from sluice.types import CopyDone, PageCopy, PageKey, Tier, TierLimits


@dataclass(slots=True, eq=False)
class PageLoad:
    """Nodes on their way to the device, in the tree's order, and the pages they are to have.

    The pages have no other owner. If the request that waits for the load leaves, what was not begun is given up.
    """

    nodes: list[Node]
    pages: list[int]
    """Page of the device for each node."""
    sources: list[tuple[int, int]]
    """The tier of each node, by its level, and its page there."""
    begun: int = 0
    """Copies that were planned: those of the first nodes."""
    open: int = 0
    """Copies that were planned and have not ended."""
    failed: set[int] = field(default_factory=set)
    """Indices of the nodes whose copies failed."""
    is_over: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPage:
    """One copy of a load."""

    load: PageLoad
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeStore:
    """A copy of a node on its way to a tier."""

    node: Node
    level: int
    """The tier's level: 0 for the fastest."""
    page: int
    """Page of the tier."""


class StoreOwner(Protocol):
    """A request that keeps its pages on a tier, as far as the stores of these pages concern it."""

    sending: set[int]
    """Pages of its context whose stores were planned and have not ended."""
    is_closed: bool

    def ended(self, index: int, error: str | None) -> None:
        """Note that the store of a page has ended."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class OffloadStore:
    """A copy of an offloaded request's page on its way to a tier."""

    owner: StoreOwner
    index: int
    """The page's index in the request's context."""
    source: int
    """Page of the device."""
    level: int
    """The tier's level: 0 for the fastest."""
    page: int
    """Page of the tier."""
    key: PageKey | None


Flight = LoadedPage | NodeStore | OffloadStore


class Flights:
    """The copies of the next plan and those in flight, within two budgets: copies of a step and copies in flight."""

    def __init__(self, limits: TierLimits) -> None:
        self._limits = limits
        self.planned: list[PageCopy] = []
        """Copies of the next plan."""
        self.tickets: dict[int, Flight] = {}
        """Copies that were planned and have not ended."""
        self._next_ticket = 0
        self._forgotten = 0
        """Tickets below this one may still end, and nothing comes of it."""

    def has_room(self, kept: int = 0) -> bool:
        """Return whether one more copy may be planned.

        Args:
            kept: copies of the step that are left to others.
        """
        limits = self._limits
        return len(self.planned) + kept < limits.copies_per_step and len(self.tickets) < limits.copies_in_flight

    def plan(
        self,
        flight: Flight,
        source: tuple[Tier, int],
        target: tuple[Tier, int],
        checksum: int = 0,
        key: PageKey | None = None,
    ) -> None:
        """Plan a copy from one (tier, page) to another."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self.tickets[ticket] = flight
        self.planned.append(PageCopy(ticket, *source, *target, checksum, key))

    def take(self) -> tuple[PageCopy, ...]:
        """Return the copies of the plan that was just made."""
        copies, self.planned = tuple(self.planned), []
        return copies

    def end(self, done: CopyDone) -> Flight | None:
        """Return the flight that has ended; None if it was forgotten."""
        flight = self.tickets.pop(done.ticket, None)
        assert flight is not None or done.ticket < self._forgotten, f"{done} was not planned, or has ended before"
        return flight

    def forget(self) -> list[tuple[int, Flight]]:
        """Give up all copies: none of them will end. Returns the flights by ticket."""
        self._forgotten = self._next_ticket
        self.planned.clear()
        flights = list(self.tickets.items())
        self.tickets.clear()
        return flights
