"""When requests leave, and what their latencies count from: over real sockets, in time that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from bench_makers import ManualTimer
from serving import run
from sluice.bench.driver import Attempt, drive, record_of
from sluice.bench.http import find_server
from sluice.bench.metrics import e2e, itls, summarize, ttft, ttft_after_send
from sluice.bench.openai import ServerTarget
from sluice.bench.options import options_from
from sluice.bench.records import Record
from sluice.bench.workload import BackgroundRequest, FixedLength, PromptMaker, Session, Turn, Workload
from sse_server import Call, ScriptedServer, scripted, stream_at_once

START_SENT_HEAD = 3
"""Looks at the time before the first token: the start of the run, the send, the head of the answer."""


@dataclass
class Count:
    """Lets a test wait for requests to end."""

    ended_count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self) -> None:
        self.ended_count += 1
        self.changed.set()

    async def reaches(self, count: int) -> None:
        while self.ended_count < count:
            self.changed.clear()
            await self.changed.wait()


@dataclass
class World:
    """A run against a scripted server, and the hands that move its time."""

    server: ScriptedServer
    timer: ManualTimer
    watcher: Count
    running: asyncio.Task[tuple[float, list[Attempt]]]

    async def to(self, moment: float, *, received: int | None = None, ended: int | None = None) -> None:
        """Let it be `moment`; wait until so many requests have come, and so many are over."""
        self.timer.advance(moment)
        if received is not None:
            await self.server.received(received)
        if ended is not None:
            await self.watcher.reaches(ended)

    async def records(self) -> list[Record]:
        start, attempts = await self.running
        return [record_of(attempt, start) for attempt in attempts]


async def start(server: ScriptedServer, workload: Workload) -> World:
    timer, watcher = ManualTimer(), Count()
    target = ServerTarget(
        await find_server(server.url), "toy", options_from({}).target, timer, as_text=workload_has_turns(workload)
    )
    return World(server, timer, watcher, asyncio.create_task(drive(target, workload, watcher.ended)))


def workload_has_turns(workload: Workload) -> bool:
    return any(len(session.turns) > 1 for session in workload.sessions)


def turn(max_tokens: int = 2) -> Turn:
    return Turn((40, 41), max_tokens)


def open_loop(*times: float, concurrency: int | None = None) -> Workload:
    return Workload(tuple(Session((turn(),), at) for at in times), concurrency=concurrency)


def closed_loop(count: int, concurrency: int) -> Workload:
    return Workload(tuple(Session((turn(),)) for _ in range(count)), concurrency=concurrency)


class Gate:
    """A server that stalls while it is shut."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __call__(self, call: Call) -> None:
        await self.is_open.wait()
        await stream_at_once(call)


def scripted_run(handler: Callable[[Call], Awaitable[None]], test: Callable[[ScriptedServer], Awaitable[None]]) -> None:
    async def body() -> None:
        async with scripted(handler) as server:
            await test(server)

    run(body)


def test_a_stall_is_seen_by_all_that_were_due_while_it_lasted() -> None:
    """Coordinated omission: a client that waits for the stalled answer before it sends the next request reports one
    slow request among ten, where ten users would have waited."""
    gate = Gate()

    async def test(server: ScriptedServer) -> None:
        world = await start(server, open_loop(*(0.5 * index for index in range(10))))
        await world.to(0.0, ended=1)
        await world.to(0.5, ended=2)
        gate.is_open.clear()
        for index in range(2, 10):
            await world.to(0.5 * index, received=index + 1)
        world.timer.advance(6.0)
        gate.is_open.set()
        found = await world.records()
        waits = [ttft(record) for record in found]
        assert waits == [0.0, 0.0, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5]
        assert summarize(found).all.ttft.p50 == 2.75

    scripted_run(gate, test)


def test_a_closed_loop_sees_the_same_stall_once() -> None:
    """Why the open loop is the one to measure latency with."""
    gate = Gate()

    async def test(server: ScriptedServer) -> None:
        world = await start(server, closed_loop(3, 1))
        gate.is_open.clear()
        await server.received(1)
        world.timer.advance(6.0)
        gate.is_open.set()
        assert [ttft(record) for record in await world.records()] == [6.0, 0.0, 0.0]

    scripted_run(gate, test)


def test_a_client_that_is_late_does_not_hide_it() -> None:
    """The schedule is absolute: a request that left late has waited since it was due; both are reported."""

    async def test(server: ScriptedServer) -> None:
        world = await start(server, open_loop(0.0, 1.0, 2.0))
        await world.to(0.0, ended=1)
        world.timer.advance(5.0)
        found = await world.records()
        assert [(record.due, record.sent) for record in found] == [(0.0, 0.0), (1.0, 5.0), (2.0, 5.0)]
        assert [ttft(record) for record in found] == [0.0, 4.0, 3.0]
        assert [ttft_after_send(record) for record in found] == [0.0, 0.0, 0.0]
        assert summarize(found).all.late.max == 4.0

    scripted_run(stream_at_once, test)


def test_gaps_between_tokens_are_those_of_the_server() -> None:
    steps = [asyncio.Event() for _ in range(4)]

    async def slowly(call: Call) -> None:
        await call.head()
        for index, step in enumerate(steps):
            await step.wait()
            await call.text("x", finish="length" if index == 3 else None)
        await call.end(completion_tokens=4)

    async def test(server: ScriptedServer) -> None:
        world = await start(server, open_loop(0.0))
        await world.timer.looked(START_SENT_HEAD)
        for looks, moment, step in zip(count(START_SENT_HEAD + 1), (1.0, 1.25, 4.0, 4.5), steps, strict=False):
            world.timer.advance(moment)
            step.set()
            await world.timer.looked(looks)
        (found,) = await world.records()
        assert ttft(found) == 1.0
        assert itls([found]) == [0.25, 2.75, 0.5]
        assert e2e(found) == 4.5

    scripted_run(slowly, test)


class Crowd:
    """Holds every request until it is let go, and knows how many it holds."""

    def __init__(self) -> None:
        self.held: list[asyncio.Event] = []
        self.most = 0
        self._inside = 0
        self.came = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        go = asyncio.Event()
        self.held.append(go)
        self.came.set()
        await go.wait()
        self._inside -= 1
        await stream_at_once(call)

    async def holds(self, number: int) -> asyncio.Event:
        """The lock of the number-th request, once it has come."""
        while len(self.held) <= number:
            self.came.clear()
            await self.came.wait()
        return self.held[number]


def test_a_closed_loop_keeps_its_concurrency() -> None:
    """It is neither less, which measures an idle server, nor more."""
    crowd = Crowd()

    async def test(server: ScriptedServer) -> None:
        world = await start(server, closed_loop(7, 3))
        for number in range(7):
            await crowd.holds(min(6, number + 2))
            (await crowd.holds(number)).set()
        assert len(await world.records()) == 7
        assert crowd.most == 3

    scripted_run(crowd, test)


def test_a_capped_schedule_counts_the_wait_for_a_place() -> None:
    crowd = Crowd()

    async def test(server: ScriptedServer) -> None:
        world = await start(server, open_loop(0.0, 1.0, concurrency=1))
        await crowd.holds(0)
        world.timer.advance(1.0)
        world.timer.advance(3.0)
        (await crowd.holds(0)).set()
        (await crowd.holds(1)).set()
        found = await world.records()
        assert crowd.most == 1
        assert [(record.due, record.sent) for record in found] == [(0.0, 0.0), (1.0, 3.0)]
        assert ttft(found[1]) == 2.0

    scripted_run(crowd, test)


def background(count: int) -> tuple[BackgroundRequest, ...]:
    maker = PromptMaker(0)
    return tuple(
        BackgroundRequest(maker, f"stream {index}", 0, FixedLength(3), FixedLength(2)) for index in range(count)
    )


def test_the_background_goes_on_until_the_sessions_are_over() -> None:
    crowd = Crowd()

    async def test(server: ScriptedServer) -> None:
        world = await start(server, Workload((Session((turn(9),), 1.0),), background(1)))
        for number in range(3):  # one after the other
            (await crowd.holds(number)).set()
        await crowd.holds(3)
        world.timer.advance(1.0)
        (await crowd.holds(4)).set()
        await world.watcher.reaches(1)
        crowd.held[3].set()
        found = await world.records()
        assert [record.background for record in found] == [True] * 4 + [False]
        assert [record.turn for record in found if record.background] == [0, 1, 2, 3]
        prompts = [tuple(call.body["prompt"]) for call in server.calls]
        assert len(set(prompts)) == 5
        assert [call.body["max_tokens"] for call in server.calls] == [2, 2, 2, 2, 9]

    scripted_run(crowd, test)


def test_a_background_that_fails_stops() -> None:
    """It would send as fast as the server refuses."""

    async def refuse(call: Call) -> None:
        if call.body["max_tokens"] == 9:
            await stream_at_once(call)
        else:
            await call.head(503, "application/json")
            await call.chunk(b'{"error": {"message": "full"}}')
            await call.chunk(b"")

    async def test(server: ScriptedServer) -> None:
        world = await start(server, Workload((Session((turn(9),), 1.0),), background(2)))
        await server.received(2)
        world.timer.advance(1.0)
        found = await world.records()
        assert sorted((record.background, record.failed) for record in found) == [(False, False), *[(True, True)] * 2]

    scripted_run(refuse, test)


def test_a_conversation_waits_thinks_and_remembers() -> None:
    crowd = Crowd()
    talk = Session((turn(), Turn((50,), 2), Turn((51,), 2)), 0.0, think=2.0)

    async def test(server: ScriptedServer) -> None:
        world = await start(server, Workload((talk,)))
        lock = await crowd.holds(0)
        world.timer.advance(1.0)
        lock.set()
        await world.watcher.reaches(1)
        assert len(server.calls) == 1
        world.timer.advance(3.0)
        (await crowd.holds(1)).set()
        await world.watcher.reaches(2)
        world.timer.advance(5.0)
        (await crowd.holds(2)).set()
        found = await world.records()
        assert [(record.turn, record.due) for record in found] == [(0, 0.0), (1, 3.0), (2, 5.0)]
        first, second, third = (call.body["prompt"] for call in server.calls)
        assert second.startswith(first + "t0 t1  ")
        assert third.startswith(second + "t0 t1  ")
        assert len(third.split()) == len(second.split()) + 2

    scripted_run(crowd, test)


def test_a_conversation_ends_with_a_failure() -> None:
    async def breaks(call: Call) -> None:
        await call.head()
        await call.text("a")

    async def test(server: ScriptedServer) -> None:
        world = await start(server, Workload((Session((turn(), turn()), 0.0),)))
        (found,) = await world.records()
        assert found.failed
        assert len(server.calls) == 1

    scripted_run(breaks, test)
