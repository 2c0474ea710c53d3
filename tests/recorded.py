"""Journals kept in memory, and traces of small runs on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.protocols import Pending, Runner
from sluice.engine.trace import NullTrace
from sluice.testing import Faults, FaultyRunner, ManualLink
from sluice.tracing.file import TraceFile, create
from sluice.tracing.format import VERSION, Header, Record
from sluice.tracing.recorder import Recorder
from sluice.types import BatchPlan, BatchResult
from worlds import Arrival, World


class Kept:
    """A journal that keeps its records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.flushes: list[int] = []
        """Number of records at each flush."""
        self.closed = 0

    def write(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.flushes.append(len(self.records))

    def close(self) -> None:
        self.closed += 1


class TimedRunner:
    """A runner that takes virtual time: a millisecond for each row and a tenth for each prefill token, at launch, as a
    cpu does, or while it is waited for."""

    def __init__(self, inner: Runner, clock: VirtualClock, *, at_launch: bool) -> None:
        self._inner = inner
        self._clock = clock
        self._at_launch = at_launch

    def launch(self, plan: BatchPlan) -> Pending:
        seconds = len(plan.chunks) / 1e3 + (plan.num_tokens - plan.num_decodes) / 1e4
        if self._at_launch:
            self._clock.advance(seconds)
            seconds = 0.0
        return TimedStep(self._inner.launch(plan), self._clock, seconds)

    def close(self) -> None:
        self._inner.close()


class TimedStep:
    def __init__(self, inner: Pending, clock: VirtualClock, seconds: float) -> None:
        self._inner = inner
        self._clock = clock
        self._seconds = seconds

    def wait(self) -> BatchResult:
        self._clock.advance(self._seconds)
        return self._inner.wait()


def header_of(world: World, *, token_ids: bool = True) -> Header:
    return Header(
        version=VERSION,
        sluice="0",
        model="shadow",
        token_ids=token_ids,
        setup=world.setup(),
        depth=world.depth,
        unix_time=0.0,
    )


def trace_file(path: Path, world: World, *, token_ids: bool = True) -> TraceFile:
    create(path)
    return TraceFile(path, header_of(world, token_ids=token_ids), key=b"key")


def recorded_engine(
    world: World,
    journal: TraceFile,
    *,
    faults: Faults | None = None,
    at_launch: bool = True,
    vocab_size: int = 2,
    shadow: Runner | None = None,
) -> Engine:
    """An engine over the shadow model whose steps take time; its clock begins at 0."""
    clock = VirtualClock()
    shadow = shadow or world.shadow(vocab_size)
    runner = TimedRunner(FaultyRunner(shadow, faults or Faults()), clock, at_launch=at_launch)
    recorder = Recorder(world.scheduler(), NullTrace(), journal, clock)
    return Engine(recorder, runner, ManualLink(), depth=world.depth, clock=clock, trace=recorder)


def play(engine: Engine, arrivals: Sequence[Arrival], max_turns: int = 1000) -> ManualLink:
    """Run until all arrivals have ended, and close the engine."""
    link, todo, turn = engine.link, sorted(arrivals, key=lambda arrival: arrival.step), 0
    assert isinstance(link, ManualLink)
    while todo or not engine.is_idle:
        while todo and todo[0].step <= turn:
            link.put(todo.pop(0).submit)
        engine.step()
        turn += 1
        assert turn <= max_turns, f"still busy after {turn} turns"
    engine.close()
    return link
