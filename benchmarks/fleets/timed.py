"""An engine over the ShadowRunner whose steps take a time that is set, so that a simulation knows its costs exactly."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.bundled import VOCAB_SIZE
from sluice.assembly.resolve import resolve
from sluice.config import EngineConfig
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.page_feed import PageFeed
from sluice.engine.protocols import Pending
from sluice.engine.trace import RecentSteps
from sluice.kv.events import NO_EVENTS, EventLog
from sluice.models.hub import BUNDLED
from sluice.process.kv_events.board import KvEventSender
from sluice.process.wire import Ready, Start
from sluice.process.zmq_link import ZmqLink
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.world import World, work_of
from sluice.testing import ShadowRunner
from sluice.types import BatchPlan, BatchResult, Regime
from sluice.types.request_limits import Limits

WORLD = World(dict.fromkeys(Regime, (15_000.0, 1_750.0, 400.0, 0.15, 0.075, 0.0)))
"""Microseconds of a step, a token, a row, a key, a pair and a byte: half of those in `benchmarks/routers.py`."""
VOCAB = 256
"""Answers have ids below this, as prompts do."""
MAX_MODEL_LEN = 8192


def setup_of(config: EngineConfig) -> SchedulerSetup:
    """Return what the scheduler is built from.

    Args:
        config: resolved.
    """
    cache = config.cache
    assert cache.page_size is not None, f"not resolved: {cache}"
    assert cache.max_total_tokens is not None, f"give --max-total-tokens: {cache}"
    return SchedulerSetup(config.scheduler.limits(), cache.max_total_tokens // cache.page_size, cache.page_size)


@dataclass
class TimedStep:
    """A step that ends at its time."""

    inner: Pending
    ends_at: float

    def wait(self) -> BatchResult:
        if (left := self.ends_at - time.perf_counter()) > 0:
            time.sleep(left)
        return self.inner.wait()


class TimedRunner:
    """The shadow model, with steps that take what `WORLD` says. It computes within that time."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self._setup = setup
        self._inner = ShadowRunner(page_size=setup.page_size, vocab_size=VOCAB)
        self._free_at = 0.0

    def launch(self, plan: BatchPlan) -> Pending:
        begins_at = max(time.perf_counter(), self._free_at)
        seconds = WORLD.modelled(work_of(plan, self._setup)) if plan.chunks else 0.0
        self._free_at = begins_at + seconds
        return TimedStep(self._inner.launch(plan), self._free_at)

    def close(self) -> None:
        self._inner.close()


def build(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build the engine of a replica, in its own process."""
    chosen = resolve(start.config, "cpu")
    setup = setup_of(chosen.config)
    log = EventLog(setup.page_size) if start.reports_kv_events else None
    engine = Engine(
        setup.build(NO_EVENTS if log is None else log),
        TimedRunner(setup),
        link,
        clock=WallClock(),
        trace=RecentSteps(),
        feed=None if log is None else PageFeed(log, KvEventSender(link.send_frame)),
    )
    limits = Limits(VOCAB_SIZE, MAX_MODEL_LEN, setup.num_pages * setup.page_size)
    ready = Ready(
        "shadow", str(BUNDLED), limits, (), config=chosen.config, reasons=chosen.reasons, fingerprint="shadow"
    )
    return engine, ready
