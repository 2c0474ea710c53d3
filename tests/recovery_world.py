"""A server's side and its engines in one thread, under a virtual clock: processes that die, hang and lose messages.

Everything but the processes and the sockets is real: client, quarantine, watch, heartbeat, stamps, the bytes of every
message, the engine's loop, and a scheduler held to its laws over the shadow model.
"""

from __future__ import annotations

import asyncio
import mmap
import random
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Phase
from sluice.engine.messages import Message, Stats
from sluice.engine.protocols import Pending, Runner
from sluice.engine.watched import WatchedRunner
from sluice.process.client import EngineClient, Inbox, OutOfStep
from sluice.process.heartbeat import SIZE, SharedHeartbeat
from sluice.process.liveness import Counts, LivenessWatch
from sluice.process.numbering import Incoming, Outgoing
from sluice.process.wire import Frame, Outputs, WireError, decode, encode
from sluice.scheduler.laws import Lawful
from sluice.types import BatchPlan, BatchResult, Output
from worlds import World

HEARTBEAT_TIMEOUT = 5.0
STEP_TIMEOUT = 60.0

Letter = tuple[bytes, bytes]
"""A stamp and a frame."""


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Doom:
    """When a process dies or stops: in the middle of a step."""

    at: str = ""
    """launch, wait or send; empty: not."""

    def strike(self, at: str) -> None:
        if self.at == at:
            raise Killed(at)


class DoomedRunner:
    """Dies when it is told, and of a poisonous token always."""

    def __init__(self, inner: Runner, doom: Doom, poison: int) -> None:
        self._inner = inner
        self._doom = doom
        self._poison = poison

    def launch(self, plan: BatchPlan) -> Pending:
        self._doom.strike("launch")
        if any(self._poison in chunk.token_ids for chunk in plan.chunks):
            raise Killed("poison")
        return DoomedStep(self._inner.launch(plan), self._doom)


class DoomedStep:
    def __init__(self, inner: Pending, doom: Doom) -> None:
        self._inner = inner
        self._doom = doom

    def wait(self) -> BatchResult:
        self._doom.strike("wait")
        return self._inner.wait()


class Process:
    """An engine's process and both ends of the line to it."""

    def __init__(self, world: World, epoch: int, *, poison: int, vocab_size: int, loading: int, now: float) -> None:
        self.epoch = epoch
        self.heartbeat = SharedHeartbeat(mmap.mmap(-1, SIZE))
        self.loading = loading
        """Turns until it is ready."""
        self.is_hung = False
        self.doom = Doom()
        self.scheduler: Lawful = world.scheduler()
        self.watch = LivenessWatch(HEARTBEAT_TIMEOUT, STEP_TIMEOUT, now)
        self.to_engine: deque[Letter] = deque()
        self.from_engine: deque[Letter] = deque()
        self._sent, self._received = Outgoing(epoch), Incoming(epoch)
        self._engine_sent, self._engine_received = Outgoing(epoch), Incoming(epoch)
        runner = DoomedRunner(world.shadow(vocab_size), self.doom, poison)
        self.engine = Engine(
            self.scheduler, WatchedRunner(runner, self.heartbeat), self, depth=world.depth, clock=VirtualClock()
        )

    def send_to(self, message: Message) -> None:
        """The server's."""
        self.to_engine.append((self._sent.stamp(), encode(message)))

    def delivered(self, count: int) -> Iterator[Frame]:
        """The next messages that reach the server, in order."""
        for _ in range(min(count, len(self.from_engine))):
            stamp, data = self.from_engine.popleft()
            if self._received.accept(stamp):
                yield decode(data)

    @property
    def counts(self) -> Counts:
        return Counts(self._sent.count, self._received.count)

    def turn(self) -> None:
        """One turn of the loop.

        Raises:
            Killed, WireError: it died.
        """
        if self.loading:
            self.loading -= 1
            if not self.loading:
                self.heartbeat.tick(Phase.BUSY)
        elif not self.is_hung:
            self.engine.step()

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        messages = []
        while self.to_engine:
            stamp, data = self.to_engine.popleft()
            if self._engine_received.accept(stamp):
                messages.append(decode(data))
        self.heartbeat.messages(received=self._engine_received.count, sent=self._engine_sent.count)
        self.heartbeat.tick(Phase.IDLE if block else Phase.BUSY)
        return messages

    def post(self, message: Message) -> None:
        raise AssertionError(f"nobody posts {message}")

    def send(self, outputs: Collection[Output]) -> None:
        self.doom.strike("send")
        self.from_engine.append((self._engine_sent.stamp(), encode(Outputs(tuple(outputs)))))

    def answer(self, stats: Stats) -> None:
        self.from_engine.append((self._engine_sent.stamp(), encode(stats)))


@dataclass
class Death:
    """What was known when an engine died."""

    inside: frozenset[int]
    """Requests that were sent to it and not over."""
    in_flight: frozenset[int]


@dataclass
class Server:
    """The server's side. Time passes in turns of a tenth of a second or so."""

    world: World
    draw: random.Random
    poison: int
    vocab_size: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    deaths: list[Death] = field(default_factory=list)
    late: list[tuple[int, Frame]] = field(default_factory=list)
    """Of processes that are gone: it comes when nobody wants it any more."""

    def __post_init__(self) -> None:
        self.client = EngineClient(clock=self.clock.now)
        self.process = self._spawn(0)
        self._is_attached = False
        self._inside: set[int] = set()

    def _spawn(self, epoch: int) -> Process:
        return Process(
            self.world,
            epoch,
            poison=self.poison,
            vocab_size=self.vocab_size,
            loading=self.draw.randint(1, 30),
            now=self.clock.now(),
        )

    def turn(self) -> None:
        """Time passes; engine and server do what they can."""
        self.clock.advance(self.draw.choice([0.05, 0.2, 0.9]))
        try:
            self.process.turn()
        except (Killed, WireError) as error:
            self._died(str(error))
            return
        if not self._is_attached and not self.process.loading:
            self._is_attached = True
            self.client.attach(self._send, self.process.epoch)
        self.pump(self.draw.randint(0, 4))
        verdict = self.process.watch.look(self.process.heartbeat.read(), self.process.counts, self.clock.now())
        if verdict is not None and self._is_attached:
            self._died(verdict)

    def pump(self, count: int) -> None:
        """Take some messages from the engine, and one that comes late."""
        if self.late and self.draw.random() < 0.2:
            epoch, frame = self.late.pop()
            assert isinstance(frame, Outputs | Stats)
            self.client.deliver(frame, epoch)
        try:
            for frame in self.process.delivered(count):
                assert isinstance(frame, Outputs | Stats)
                self.client.deliver(frame, self.process.epoch)
        except (WireError, OutOfStep) as error:
            self._died(str(error))

    def kill(self) -> None:
        """From outside, between two turns."""
        self._died("was killed")

    def _send(self, message: Message) -> None:
        if (request_id := getattr(message, "request_id", None)) is not None:
            self._inside.add(request_id)
        self.process.send_to(message)

    def _died(self, how: str) -> None:
        """Some of what it had sent still arrives, the rest never or much too late."""
        dead = self.process
        if self._is_attached:
            try:
                for frame in dead.delivered(self.draw.randint(0, len(dead.from_engine))):
                    self.client.deliver(frame, dead.epoch)
                self.late += [(dead.epoch, frame) for frame in dead.delivered(self.draw.randint(0, 3))]
            except (WireError, OutOfStep):
                pass  # it had lost one
            in_flight = dead.heartbeat.in_flight()
            self.deaths.append(Death(frozenset(self._inside), in_flight))
            self.client.detach(how, in_flight)
        dead.heartbeat.close()
        self._inside.clear()
        self._is_attached = False
        self.process = self._spawn(dead.epoch + 1)


def arrived(inbox: Inbox) -> list[Output]:
    """What is there now, without waiting. Needs a running event loop."""
    getting = inbox.get()
    try:
        getting.send(None)
    except StopIteration as done:
        outputs: list[Output] = done.value
        return outputs
    getting.close()
    return []


def in_a_loop(work: object) -> None:
    """Call it where an event loop runs."""

    async def main() -> None:
        work()  # type: ignore[operator]

    asyncio.run(main())
