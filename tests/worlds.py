"""Small worlds for the machines and the scenario tests: settings in which everything runs short."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from sluice.engine.engine import Engine
from sluice.engine.protocols import Runner
from sluice.kv.manager import KVManager
from sluice.scheduler.laws import Lawful
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import ManualLink, ShadowRunner
from sluice.types import SchedulerLimits

VOCAB = 2
"""Two tokens: prefixes collide all the time."""


@dataclass(frozen=True)
class World:
    """Everything an engine can be set to."""

    limits: SchedulerLimits
    num_pages: int
    page_size: int
    prefix_caching: bool
    depth: int
    late: bool

    @property
    def pool_tokens(self) -> int:
        return self.num_pages * self.page_size

    def kv(self) -> KVManager:
        return KVManager(num_pages=self.num_pages, page_size=self.page_size, prefix_caching=self.prefix_caching)

    def shadow(self) -> ShadowRunner:
        return ShadowRunner(page_size=self.page_size, vocab_size=VOCAB, late=self.late)

    def engine(self, runner: Runner | None = None) -> Engine:
        """An engine over the shadow runner whose scheduler obeys the laws or raises."""
        scheduler = Lawful(Scheduler(self.limits, self.kv()))
        return Engine(scheduler, runner or self.shadow(), ManualLink(), depth=self.depth)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    page_size = draw(st.sampled_from([1, 2, 4, 16, 64]))
    depth = draw(st.integers(1, 3))
    running = draw(st.integers(1, 5))
    chunk = draw(st.sampled_from([0, page_size, page_size + 1, 3 * page_size - 1, 8 * page_size]))
    slack = draw(st.integers(1, 4 * page_size))
    limits = SchedulerLimits(
        schedule=draw(st.sampled_from(["mixed", "prefill-first"])),
        chunked_prefill_size=chunk,
        max_batch_tokens=running + max(slack, page_size),
        max_running_requests=running,
        lookahead=draw(st.integers(0, depth - 1)),
    )
    return World(
        limits=limits,
        num_pages=draw(st.integers(3, 24)),
        page_size=page_size,
        prefix_caching=draw(st.booleans()),
        depth=depth,
        late=draw(st.booleans()),
    )
