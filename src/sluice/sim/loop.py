"""EngineLoop: turns the loop of an engine on a virtual clock, an event at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Message, Stats
from sluice.types import BatchPlan, Output

NEVER = math.inf
MOST_EMPTY_TURNS = 16
"""Turns without a plan, one after the other, after which an engine waits for a message."""


class SimulatedTimes(Protocol):
    """Says when the steps of one engine end, and when it plans."""

    def ends_at(self, plan: BatchPlan, now: float, free_at: float) -> float:
        """Return when a step ends.

        Args:
            now: when it is launched.
            free_at: when the device is done with the step before.
        """
        ...

    def turn_at(self, now: float, *, has_waited: bool) -> float:
        """Return when the engine is ready for its next turn. Called after each turn, and before the first.

        Args:
            now: when the turn is over.
            has_waited: whether it ended with the commit of a step.
        """
        ...


class SimulatedStep(Protocol):
    """A simulated step in flight."""

    @property
    def ends_at(self) -> float: ...


class SimLink:
    """The engine's link: messages that reach it at a moment, and its outputs.

    Args:
        take: receives the outputs of each step.
    """

    def __init__(self, clock: VirtualClock, take: Callable[[Sequence[Output]], None]) -> None:
        self._clock = clock
        self._take = take
        self._inbox: list[tuple[float, int, Message]] = []
        self._count = 0

    @property
    def next_at(self) -> float:
        """When the next message comes."""
        return self._inbox[0][0] if self._inbox else NEVER

    def put(self, at: float, message: Message) -> None:
        """Deliver a message at a moment. Those of one moment keep their order."""
        self._count += 1
        heappush(self._inbox, (at, self._count, message))

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        """Return what has come, without waiting: the loop that drives the engine calls it when there is a message."""
        now, found = self._clock.now(), []
        while self._inbox and self._inbox[0][0] <= now:
            found.append(heappop(self._inbox)[2])
        return found

    def post(self, message: Message) -> None:
        self.put(self._clock.now(), message)

    def send(self, outputs: Sequence[Output]) -> None:
        self._take(outputs)

    def answer(self, stats: Stats) -> None:
        """Return: nothing asks for statistics."""


class EngineLoop:
    """Does the turns of an engine when they are due. Nothing that a step brings is seen before it ends.

    Args:
        engine: over `link` and `clock`, with a runner whose steps have an `ends_at`, to which `wait` lets time pass.
    """

    def __init__(self, engine: Engine, link: SimLink, clock: VirtualClock, times: SimulatedTimes) -> None:
        self.engine = engine
        self._link = link
        self._clock = clock
        self._times = times
        self._ready_at = times.turn_at(clock.now(), has_waited=False)
        self._oldest: SimulatedStep | None = None
        """The step that the engine waits for."""
        self._empty_turns = 0
        """The latest turns that planned nothing with nothing in flight. One may preempt requests, and the next one
        plan."""

    def next_event(self) -> float:
        """Return when it does something next, in seconds; `NEVER` if it waits for requests."""
        if self._oldest is not None:
            return self._oldest.ends_at
        if self._empty_turns > MOST_EMPTY_TURNS or self.engine.awaits_message:
            return max(self._ready_at, self._link.next_at)
        return self._ready_at

    @property
    def is_ready(self) -> bool:
        """Whether it plans next, with nothing in flight."""
        return self._oldest is None and not self.engine.in_flight and not self.engine.awaits_message

    def leapt(self, ready_at: float) -> None:
        """Note that steps were done without it, and when the engine plans next."""
        self._ready_at = ready_at

    def run_next(self) -> None:
        """Do what is next: a turn of the engine's loop up to where it waits for a step, or the end of that step."""
        self._clock.advance_to(self.next_event())
        if self._oldest is not None:
            self._oldest = None
            self.engine.finish()
            self._ready_at = self._times.turn_at(self._clock.now(), has_waited=True)
            return
        if self.engine.begin():
            self._empty_turns = 0
            self._oldest = self.engine.in_flight[0].pending  # type: ignore[assignment]  # what a SimRunner launches
            return
        self._empty_turns = 0 if self.engine.in_flight else self._empty_turns + 1
        self._ready_at = self._times.turn_at(self._clock.now(), has_waited=False)

    def advance(self, until: float) -> None:
        """Do all that comes before a moment. What comes at it is left, so that requests that arrive then are seen."""
        while self.next_event() < until:
            self.run_next()
