"""A server and its engines in one thread, under a virtual clock: processes that die and hang.

Only the processes and the sockets are simulated. Client, quarantine, watch, heartbeat, the bytes of every
message, the engine's loop and the scheduler (checked by its laws, over the shadow model) are real.
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
from sluice.engine.heartbeat import Phase, WatchedRunner
from sluice.engine.messages import Message, Stats
from sluice.engine.protocols import Pending, Runner
from sluice.process.client import EngineClient, Inbox
from sluice.process.delivery import OutputOrderError
from sluice.process.heartbeat import SIZE, SharedHeartbeat
from sluice.process.liveness import LivenessWatch
from sluice.process.wire import Frame, Outputs, WireError, decode, encode
from sluice.testing import ShadowAdapters, ShadowGrammars
from sluice.testing.laws import Lawful
from sluice.types import BatchPlan, BatchResult, Output
from worlds import World

HEARTBEAT_TIMEOUT = 5.0
STEP_TIMEOUT = 60.0


class Killed(BaseException):
    """The simulated process dies."""


@dataclass
class Doom:
    """Where in the next step a process dies."""

    at: str = ""
    """launch, wait or send; empty for nowhere."""

    def strike(self, at: str) -> None:
        if self.at == at:
            raise Killed(at)


class DoomedRunner:
    """A runner that dies where `doom` says, and at every step that computes the token `poison`."""

    def __init__(self, inner: Runner, doom: Doom, poison: int) -> None:
        self._inner = inner
        self._doom = doom
        self._poison = poison

    def launch(self, plan: BatchPlan) -> Pending:
        self._doom.strike("launch")
        if any(self._poison in chunk.token_ids for chunk in plan.chunks):
            raise Killed("poison")
        return DoomedStep(self._inner.launch(plan), self._doom)

    def close(self) -> None:
        self._inner.close()


class DoomedStep:
    def __init__(self, inner: Pending, doom: Doom) -> None:
        self._inner = inner
        self._doom = doom

    def wait(self) -> BatchResult:
        self._doom.strike("wait")
        return self._inner.wait()


class Process:
    """An engine's process and both ends of the connection to it."""

    def __init__(self, world: World, epoch: int, *, poison: int, vocab_size: int, loading: int, now: float) -> None:
        self.epoch = epoch
        self.heartbeat = SharedHeartbeat(mmap.mmap(-1, SIZE))
        self.loading = loading
        """Turns until it is ready."""
        self.is_hung = False
        self.doom = Doom()
        self.scheduler: Lawful = world.scheduler()
        self.watch = LivenessWatch(HEARTBEAT_TIMEOUT, STEP_TIMEOUT, now)
        self.to_engine: deque[bytes] = deque()
        self.from_engine: deque[bytes] = deque()
        runner = DoomedRunner(world.shadow(vocab_size), self.doom, poison)
        self.engine = Engine(
            self.scheduler,
            WatchedRunner(runner, self.heartbeat),
            self,
            depth=world.depth,
            clock=VirtualClock(),
            grammars=ShadowGrammars(self.post),
            adapters=ShadowAdapters(self.post, places=world.limits.max_loras),
        )

    def send_to(self, message: Message) -> None:
        """Send a message from the server."""
        self.to_engine.append(encode(message))

    def delivered(self, count: int) -> Iterator[Frame]:
        """Yield the next messages that reach the server, in order."""
        for _ in range(min(count, len(self.from_engine))):
            yield decode(self.from_engine.popleft())

    def turn(self) -> None:
        """Run one turn of the engine's loop.

        Raises:
            Killed, WireError: the process died.
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
            messages.append(decode(self.to_engine.popleft()))
        self.heartbeat.tick(Phase.IDLE if block else Phase.BUSY)
        return messages

    def post(self, message: Message) -> None:
        raise AssertionError(f"unexpected post of {message}")

    def send(self, outputs: Collection[Output]) -> None:
        self.doom.strike("send")
        self.from_engine.append(encode(Outputs(tuple(outputs))))

    def answer(self, stats: Stats) -> None:
        self.from_engine.append(encode(stats))


@dataclass
class Death:
    """The requests of an engine that died."""

    inside: frozenset[int]
    """Requests that were sent to it."""
    in_flight: frozenset[int]


@dataclass
class Server:
    """The server. Each turn takes from 0.05 to 0.9 seconds of virtual time."""

    world: World
    draw: random.Random
    poison: int
    vocab_size: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    deaths: list[Death] = field(default_factory=list)
    late: list[tuple[int, Frame]] = field(default_factory=list)
    """Messages of processes that ended, to be delivered too late."""

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
        """Advance the clock, and let the engine and the server take a turn."""
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
        verdict = self.process.watch.look(self.process.heartbeat.read(), self.clock.now())
        if verdict is not None and self._is_attached:
            self._died(verdict)

    def pump(self, count: int) -> None:
        """Deliver some messages of the engine, and perhaps one of an earlier engine."""
        if self.late and self.draw.random() < 0.2:
            epoch, frame = self.late.pop()
            assert isinstance(frame, Outputs | Stats)
            self.client.deliver(frame, epoch)
        try:
            for frame in self.process.delivered(count):
                assert isinstance(frame, Outputs | Stats)
                self.client.deliver(frame, self.process.epoch)
        except (WireError, OutputOrderError) as error:
            self._died(str(error))

    def kill(self) -> None:
        """Kill the process between two turns."""
        self._died("was killed")

    def _send(self, message: Message) -> None:
        if (request_id := getattr(message, "request_id", None)) is not None:
            self._inside.add(request_id)
        self.process.send_to(message)

    def _died(self, how: str) -> None:
        """Replace the process. Some of its messages still arrive, the others much too late or never."""
        dead = self.process
        if self._is_attached:
            for frame in dead.delivered(self.draw.randint(0, len(dead.from_engine))):
                self.client.deliver(frame, dead.epoch)
            self.late += [(dead.epoch, frame) for frame in dead.delivered(self.draw.randint(0, 3))]
            in_flight = dead.heartbeat.in_flight()
            self.deaths.append(Death(frozenset(self._inside), in_flight))
            self.client.detach(how, in_flight)
        dead.heartbeat.close()
        self._inside.clear()
        self._is_attached = False
        self.process = self._spawn(dead.epoch + 1)


def arrived(inbox: Inbox) -> list[Output]:
    """Return the outputs that have arrived, without waiting. Needs a running event loop."""
    getting = inbox.get()
    try:
        getting.send(None)
    except StopIteration as done:
        outputs: list[Output] = done.value
        return outputs
    getting.close()
    return []


def in_a_loop(work: object) -> None:
    """Call `work` in a running event loop."""

    async def main() -> None:
        work()  # type: ignore[operator]

    asyncio.run(main())
