"""Sends a workload: each request when it is due, whatever became of the ones before.

    open loop      a session starts at its time; a slow server does not slow the arrivals down
    closed loop    `concurrency` workers, each starts the next session when its last one has ended
    background     so many streams, each sends again when it has ended, until all sessions have

Latencies are counted from the time a request was *due*: by the schedule, or in a closed loop when its place became
free, or for a later turn when the think time was over. So neither a stalled server nor a late client hides a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sluice.bench.answers import Arrival, Earlier, Exchange, Target
from sluice.bench.records import Record
from sluice.bench.timing import Timer
from sluice.bench.workload import Background, Session, Turn, Workload

DECIMALS = 6
"""Records keep times to the microsecond."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of the run. Times are seconds of the timer."""

    session: int
    """Index of its session, or of its background stream."""
    turn_index: int
    """In its session, or in its stream."""
    background: bool
    turn: Turn
    due: float
    exchange: Exchange


class Watcher(Protocol):
    """Is told how the run gets on."""

    def ended(self) -> None:
        """A request of a session is over. Those of the background do not count."""
        ...


class NoWatcher:
    """Looks away."""

    def ended(self) -> None:
        pass


class _Ready(NamedTuple):
    """A session whose first request is prepared."""

    number: int
    session: Session
    first: object


async def drive(
    target: Target, workload: Workload, timer: Timer, watcher: Watcher | None = None
) -> tuple[float, list[Attempt]]:
    """Send everything and wait for the end of all of it.

    Returns:
        The time of the start, and the attempts in the order in which they were due.
    """
    ready = [
        _Ready(index, session, target.prepare(session.turns[0], ())) for index, session in enumerate(workload.sessions)
    ]
    run = _Run(target, timer, watcher or NoWatcher(), start=timer.now())
    async with asyncio.TaskGroup() as tasks:
        for index, background in enumerate(workload.background):
            tasks.create_task(run.background(index, background))
        await run.sessions(ready, workload.concurrency)
        run.sessions_are_over = True
    return run.start, sorted(run.attempts, key=lambda attempt: attempt.due)


@dataclass(slots=True)
class _Run:
    target: Target
    timer: Timer
    watcher: Watcher
    start: float
    attempts: list[Attempt] = field(default_factory=list)
    sessions_are_over: bool = False

    async def sessions(self, ready: Sequence[_Ready], concurrency: int | None) -> None:
        """All sessions: those with a time at their time, the others as workers get to them."""
        timed = sorted((each for each in ready if each.session.at is not None), key=lambda each: each.session.at or 0.0)
        queue = iter([each for each in ready if each.session.at is None])
        place = nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency or 0):
                tasks.create_task(self._worker(queue))
            for each in timed:
                due = self.start + (each.session.at or 0.0)
                await self.timer.until(due)
                tasks.create_task(self._when_free(place, each, due))

    async def background(self, index: int, background: Background) -> None:
        """One stream. It ends with its first failure, or a server that refuses everything would be flooded."""
        for number, turn in enumerate(background.turns()):
            exchange = await self.target.send(self.target.prepare(turn, ()))
            self.attempts.append(Attempt(index, number, True, turn, exchange.sent, exchange))
            if self.sessions_are_over or exchange.answer().failure is not None:
                return

    async def _worker(self, queue: Iterator[_Ready]) -> None:
        for each in queue:
            await self._session(each, self.timer.now())

    async def _when_free(self, place: nullcontext[None] | asyncio.Semaphore, each: _Ready, due: float) -> None:
        async with place:
            await self._session(each, due)

    async def _session(self, each: _Ready, due: float) -> None:
        earlier: list[Earlier] = []
        prepared = each.first
        last = len(each.session.turns) - 1
        for number, turn in enumerate(each.session.turns):
            exchange = await self.target.send(prepared)
            self.attempts.append(Attempt(each.number, number, False, turn, due, exchange))
            self.watcher.ended()
            if number == last:
                return
            answer = exchange.answer()
            if answer.failure is not None:  # the turns after it have nothing to follow on
                return
            earlier.append(Earlier(turn, answer))
            prepared = self.target.prepare(each.session.turns[number + 1], tuple(earlier))
            due = exchange.ended + each.session.think
            await self.timer.until(due)


def record_of(attempt: Attempt, start: float) -> Record:
    """The record of an attempt, times made relative to the start."""
    exchange, answer = attempt.exchange, attempt.exchange.answer()
    planned = len(attempt.turn.prompt)
    return Record(
        session=attempt.session,
        turn=attempt.turn_index,
        background=attempt.background,
        kind=attempt.turn.kind,
        prompt_tokens=planned if answer.prompt_tokens is None else answer.prompt_tokens,
        max_tokens=attempt.turn.max_tokens,
        due=_since(start, attempt.due),
        sent=_since(start, exchange.sent),
        accepted=None if exchange.accepted is None else _since(start, exchange.accepted),
        ended=_since(start, exchange.ended),
        arrivals=tuple(Arrival(_since(start, at), tokens) for at, tokens in answer.arrivals),
        counted_by=answer.counted_by,
        cached_tokens=answer.cached_tokens,
        finish_reason=answer.finish_reason,
        failure=answer.failure,
    )


def _since(start: float, moment: float) -> float:
    return round(moment - start, DECIMALS)
