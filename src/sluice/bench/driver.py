"""Sends a workload to a target, each request when it is due.

    open loop      a session starts at its time; a slow server does not slow the arrivals down
    closed loop    `concurrency` workers, each starts the next session when its last one has ended
    background     a number of streams, each sends again when it has ended, until all sessions have

Latencies count from the time a request was *due*: by the schedule, or in a closed loop when its place became free, or
for a later turn when the think time was over. So neither a stalled server nor a late client hides a wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sluice.bench.records import CountedBy, Failure, Record, TokenArrival
from sluice.bench.workload import BackgroundRequest, Session, Turn, Workload

DECIMALS = 6
"""Records keep times to the microsecond."""


class Timer:
    """The client's clock: monotonic time of this machine. Tests pass their own, to measure exact times without waiting.

    Waits end up to 1 ms late: the event loop's selector counts milliseconds.
    """

    def now(self) -> float:
        """Return the seconds from some fixed moment."""
        return time.perf_counter()

    async def until(self, moment: float) -> None:
        """Return at or after this moment; at once if it is over."""
        await asyncio.sleep(max(0.0, moment - self.now()))


@asynccontextmanager
async def watch_lag(timer: Timer, interval: float = 0.05) -> AsyncIterator[list[float]]:
    """Note how many seconds late the event loop wakes up, one value each `interval`. Arrivals are seen as late."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            due = timer.now() + interval
            await timer.until(due)
            late.append(timer.now() - due)

    task = asyncio.create_task(watch())
    try:
        yield late
    finally:
        task.cancel()
        await asyncio.wait({task})


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """What one request brought. Times are seconds of the client's clock."""

    arrivals: tuple[TokenArrival, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """Empty if the target does not give them."""
    counted_by: CountedBy = CountedBy.EVENTS
    prompt_tokens: int | None = None
    """Tokens of the prompt as the target counts them; None if it does not say."""
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def num_tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was sent and is over."""

    sent: float
    """When the client began, before it connected."""
    accepted: float | None
    """When the target had taken it: the first byte of the answer's head, or the end of the call."""
    ended: float
    answer: Callable[[], MeasuredAnswer]
    """Reads the answer from the raw bytes. That costs time, so it is called after the run where possible."""


class Earlier(NamedTuple):
    """An earlier turn of the same conversation, and its answer."""

    turn: Turn
    answer: MeasuredAnswer


class BenchTarget(Protocol):
    """A server or an engine that is measured."""

    @property
    def timer(self) -> Timer: ...

    def prepare(self, turn: Turn, earlier: Sequence[Earlier]) -> object:
        """Do all that can be done before the request is due. Returns what `send` of the same target takes."""

    async def send(self, prepared: object) -> Exchange:
        """Send the request and wait until it is over. Raises nothing: the answer holds the failure."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of the run. Times are seconds of the timer."""

    session: int
    """Index of its session, or of its background stream."""
    turn_index: int
    """Index in its session, or in its stream."""
    background: bool
    turn: Turn
    due: float
    exchange: Exchange


class _Ready(NamedTuple):
    """A session whose first request is prepared."""

    number: int
    session: Session
    first: object


async def drive(
    target: BenchTarget, workload: Workload, on_end: Callable[[], object] = lambda: None
) -> tuple[float, list[Attempt]]:
    """Send everything and wait for the end of all of it.

    Args:
        on_end: is called when a request of a session is over.

    Returns:
        The time of the start, and the attempts in the order in which they were due.
    """
    ready = [
        _Ready(index, session, target.prepare(session.turns[0], ())) for index, session in enumerate(workload.sessions)
    ]
    run = _Run(target, target.timer, on_end, start=target.timer.now())
    async with asyncio.TaskGroup() as tasks:
        for index, background in enumerate(workload.background):
            tasks.create_task(run.background(index, background))
        await run.sessions(ready, workload.concurrency)
        run.sessions_are_over = True
    return run.start, sorted(run.attempts, key=lambda attempt: attempt.due)


@dataclass(slots=True)
class _Run:
    target: BenchTarget
    timer: Timer
    on_end: Callable[[], object]
    start: float
    attempts: list[Attempt] = field(default_factory=list)
    sessions_are_over: bool = False

    async def sessions(self, ready: Sequence[_Ready], concurrency: int | None) -> None:
        """Run all sessions: those with a time at their time, the others as workers become free."""
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

    async def background(self, index: int, background: BackgroundRequest) -> None:
        """Run one stream. It ends with its first failure, or a server that refuses everything would be flooded."""
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
            self.on_end()
            if number == last:
                return
            answer = exchange.answer()
            if answer.failure is not None:  # the later turns have no answer to follow
                return
            earlier.append(Earlier(turn, answer))
            prepared = self.target.prepare(each.session.turns[number + 1], tuple(earlier))
            due = exchange.ended + each.session.think
            await self.timer.until(due)


def record_of(attempt: Attempt, start: float) -> Record:
    """Return the record of an attempt, with times relative to the start."""
    exchange, answer = attempt.exchange, attempt.exchange.answer()

    def since_start(moment: float) -> float:
        return round(moment - start, DECIMALS)

    return Record(
        session=attempt.session,
        turn=attempt.turn_index,
        background=attempt.background,
        kind=attempt.turn.kind,
        prompt_tokens=len(attempt.turn.prompt) if answer.prompt_tokens is None else answer.prompt_tokens,
        max_tokens=attempt.turn.max_tokens,
        due=since_start(attempt.due),
        sent=since_start(exchange.sent),
        accepted=None if exchange.accepted is None else since_start(exchange.accepted),
        ended=since_start(exchange.ended),
        arrivals=tuple(TokenArrival(since_start(at), tokens) for at, tokens in answer.arrivals),
        counted_by=answer.counted_by,
        cached_tokens=answer.cached_tokens,
        finish_reason=answer.finish_reason,
        failure=answer.failure,
    )
