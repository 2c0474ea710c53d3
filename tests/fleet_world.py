"""A fleet without Ray: replicas with real engines over the shadow model, which die where a test wants them to.

Link, client, chooser, calls, the bytes of every message, the engines' loops and schedulers (checked by their laws) are
real. A turn is one step of every engine; no time passes.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from shadow_engine import PAGE_SIZE, shadow_engine
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import PagesOffered, PagesTaken, Stats
from sluice.engine.transfer import Handover
from sluice.fleet.calls import ReplicaCall
from sluice.fleet.disaggregated import DisaggregatedPrefill
from sluice.fleet.identity import Identity
from sluice.fleet.kv_event_sync import KvChanges, KvEventLog
from sluice.fleet.link import EPOCH, FleetLink
from sluice.fleet.replica import ReplicaServer
from sluice.fleet.replica_router import ReplicaCandidate, ReplicaReport, ReplicaRouter
from sluice.fleet.replicas import ReplicaLost
from sluice.process.client import EngineClient, Inbox
from sluice.process.engine_state import EngineState
from sluice.process.kv_events.board import KvEventSender
from sluice.process.wire import Outputs, decode
from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import RouterOptions, make_policy
from sluice.routing.split import SplitLimits
from sluice.testing import ManualLink
from sluice.types import Output, Submit

OURS = Identity("shadow", "weights", "form")
THEIRS = Identity("shadow", "other weights", "form")
PATIENCE = 300.0
Build = Callable[[ManualLink, Callable[[PagesOffered | PagesTaken], None]], Engine]


class Replica:
    """A replica of a fleet.

    Args:
        version: of the application.
        build: makes its engine, of its link and of what takes its answers about pages; None: a shadow engine.
    """

    def __init__(
        self,
        key: str,
        identity: Identity = OURS,
        version: str = "1",
        clock_offset: float = 0.0,
        build: Build | None = None,
    ) -> None:
        self.key = key
        self.candidate = ReplicaCandidate(key, identity, version)
        clock = VirtualClock(clock_offset)
        self._link = ManualLink()
        self.pages = KvEventLog()
        sender = KvEventSender(lambda events: self.pages.publish(events.batch))
        self.engine = shadow_engine(self._link, listener=sender) if build is None else build(self._link, self._answer)
        if build is None:
            self.engine.handover = Handover(self._answer)
        self.client = EngineClient(self._link.put, clock=clock.now)
        page_size = PAGE_SIZE if build is None else self.engine.scheduler.state.kv.page_size
        self.server = ReplicaServer(self.client, identity, page_size, self.pages)
        self.died = asyncio.Event()
        self.received: list[Submit] = []

    def _answer(self, answer: PagesOffered | PagesTaken) -> None:
        self.client.deliver(answer)

    def turn(self) -> None:
        """Make a step, and deliver what it brought."""
        self.engine.step()
        outputs, self._link.outputs = self._link.outputs, []
        self.client.deliver(Outputs(tuple(outputs)))
        for stats in self._link.stats:
            self.client.deliver(stats)
        self._link.stats = []

    async def stream(self, data: bytes) -> AsyncGenerator[bytes, None]:
        """Serve a request until the replica dies.

        Raises:
            ReplicaLost: it has died.
        """
        async with aclosing(self.server.stream(data)) as frames:
            while True:
                following = asyncio.ensure_future(anext(frames, None))
                dying = asyncio.ensure_future(self.died.wait())
                try:
                    await asyncio.wait({following, dying}, return_when=asyncio.FIRST_COMPLETED)
                    if dying.done():
                        raise ReplicaLost(f"{self.key} was killed")
                    frame = following.result()
                finally:
                    for task in (following, dying):
                        task.cancel()
                    await asyncio.wait({following, dying})
                if frame is None:
                    return
                yield frame


class Side:
    """The way to the replicas of one deployment."""

    def __init__(self, replicas: dict[str, Replica], world: FleetWorld) -> None:
        self.replicas = replicas
        self._world = world

    async def stream(self, call: ReplicaCall) -> AsyncGenerator[bytes, None]:
        while not self.replicas:  # as Ray does
            await asyncio.sleep(0)
        candidates = [each.candidate for each in self.replicas.values()]
        key = call.chooser.choose(call.attempt, call, candidates) or self._world.draw.choice(list(self.replicas))
        call.chooser.sent(call.attempt, key)
        self._world.sent_to.append((call.request.request_id, key))
        async with aclosing(self.replicas[key].stream(pickle.loads(pickle.dumps(call)))) as frames:
            async for frame in frames:
                yield frame

    async def ask(self, chooser: ReplicaRouter, *, flush: bool) -> Mapping[str, ReplicaReport]:
        chooser.admit([each.candidate for each in self.replicas.values()])
        answers = {}
        for key, replica in self.replicas.items():
            first = chooser.first_wanted(key)
            data = await replica.server.stats(flush=flush)
            stats = None if data is None else decode(data)
            if isinstance(stats, Stats) and (changes := replica.server.changes(first)) is not None:
                answers[key] = ReplicaReport(stats, KvChanges.decoded(*changes.encoded()))
        return answers


class FleetWorld:
    """An ingress's client and link, and the replicas.

    Args:
        keys: of the first replicas.
        router: as in `--router`.
        patience: of the link, in seconds. A request without a replica waits for it by the clock of the event loop.
        prefill: keys of the first prefill replicas; None: prompts are not computed apart.
        limits: which of them are.
    """

    def __init__(
        self,
        keys: Sequence[str] = ("a", "b", "c"),
        router: str = "prefix-aware",
        seed: int = 0,
        patience: float = PATIENCE,
        prefill: Sequence[str] | None = None,
        limits: SplitLimits = SplitLimits(),  # noqa: B008  # it is immutable
    ) -> None:
        self.draw = random.Random(seed)
        self.clock = VirtualClock(1000.0)
        self.replicas: dict[str, Replica] = {}
        for key in keys:
            self.add(Replica(key))
        self.chooser = self._new_chooser(router)
        self.prefill = None if prefill is None else Side({key: Replica(key) for key in prefill}, self)
        apart = None if self.prefill is None else DisaggregatedPrefill(self.prefill, self._new_chooser(router), limits)
        self.client = EngineClient(clock=self.clock.now)
        self.state = EngineState()
        self.link = FleetLink(self.client, self, self.chooser, self.state, patience, self._sleep, apart)
        self.client.attach(self.link.send, EPOCH)
        self.sent_to: list[tuple[int, str]] = []
        """Requests and the replicas that they were sent to."""
        self.failures: list[BaseException] = []
        """Raised by the next calls and questions, the last one first."""

    def add(self, replica: Replica) -> None:
        self.replicas[replica.key] = replica

    def kill(self, key: str) -> None:
        """End a replica in the middle of whatever it does."""
        self.replicas.pop(key).died.set()

    def _new_chooser(self, router: str) -> ReplicaRouter:
        policy = make_policy(router, RouterOptions(256, PAGE_SIZE))
        return ReplicaRouter(Dispatcher(policy), OURS, PAGE_SIZE, self.clock.now)

    async def stream(self, call: ReplicaCall) -> AsyncGenerator[bytes, None]:
        if self.failures:
            raise self.failures.pop()
        async with aclosing(Side(self.replicas, self).stream(call)) as frames:
            async for frame in frames:
                yield frame

    async def ask(self, chooser: ReplicaRouter, *, flush: bool) -> Mapping[str, ReplicaReport]:
        if self.failures:
            raise self.failures.pop()
        return await Side(self.replicas, self).ask(chooser, flush=flush)

    async def turn(self) -> None:
        """Let tasks run, and each engine make a step."""
        for _ in range(8):
            await asyncio.sleep(0)
        prefill = {} if self.prefill is None else self.prefill.replicas
        for replica in [*self.replicas.values(), *prefill.values()]:
            replica.turn()

    async def settle(self, turns: int = 2000) -> None:
        """Let turns pass until no request is open."""
        for _ in range(turns):
            if not self.client.num_open:
                return
            await self.turn()
        raise AssertionError(f"{self.client.num_open} requests are open after {turns} turns")

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)


async def outputs_of(inbox: Inbox) -> list[Output]:
    """Return all outputs of requests that have ended, without waiting."""
    found: list[Output] = []
    while sum(each.finish_reason is not None for each in found) < len(inbox.request_ids):
        found += await inbox.get()
    return found
