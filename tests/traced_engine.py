"""A factory of engines in their own process that write a trace, over the shadow model."""

from __future__ import annotations

from pathlib import Path

from recorded import trace_file
from recording import RecordingRunner
from shadow_engine import LIMITS, VOCAB
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.protocols import Link
from sluice.engine.trace import RecentSteps
from sluice.process.wire import Ready, Start
from sluice.tracing.recorder import Recorder
from worlds import World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)


def build(start: Start, link: Link) -> tuple[Engine, Ready]:
    """Build an engine that writes the trace of its config."""
    assert start.config.trace.trace is not None
    journal = trace_file(Path(start.config.trace.trace), WORLD)
    recorder = Recorder(WORLD.scheduler(), RecentSteps(), journal, WallClock())
    engine = Engine(recorder, RecordingRunner(WORLD.shadow(VOCAB)), link, trace=recorder)
    return engine, Ready("shadow", start.config.model.model, LIMITS, ())
