"""Chunks that are divided by layers among steps, in a pipeline, on a machine made of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.engine.protocols import Pending, Runner
from sluice.kv.manager import KVManager
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import ManualLink, ShadowRunner, resolved
from sluice.testing.laws.plans import layered
from sluice.types import BatchPlan, BatchResult, ChunkSlice, SchedulerLimits
from timed import PAGE, load_of
from worlds import limits_of

LAYERS = 20
TARGET = 60_000
STEP, TOKEN, LONG_TOKEN = 40_000.0, 500.0, 300.0
"""Microseconds of reading all weights, of a decode, and of a token of a long chunk."""


def limits(stages: int = 2, part_tokens: int = 128) -> SchedulerLimits:
    base = limits_of(chunk=512, running=16, max_partial_prefills=4, itl_target=TARGET, pipeline_stages=stages)
    return replace(base, sliced_chunk_size=2048, num_layers=LAYERS, part_tokens=part_tokens)


@dataclass
class Step:
    """A step that ends at a moment."""

    inner: Pending
    clock: VirtualClock
    ends_at: float

    def wait(self) -> BatchResult:
        self.clock.advance_to(self.ends_at)
        return self.inner.wait()


@dataclass
class Pipeline:
    """Stages that compute at the same time: rows as they come from the stage before, then layers of chunks, for which
    they wait for nobody. Whole chunks are so slow that layers are always taken."""

    inner: Runner
    clock: VirtualClock
    limits: SchedulerLimits
    plans: list[BatchPlan] = field(default_factory=list)
    seconds: float = 0.0
    """From the arrival of the long prompt to its end."""

    def __post_init__(self) -> None:
        self._free_at = [0.0] * self.limits.pipeline_stages

    def launch(self, plan: BatchPlan) -> Step:
        self.plans.append(plan)
        arrives, stages = self.clock.now(), self.limits.pipeline_stages
        tokens = load_of(plan).tokens
        rows = (STEP * (tokens > 0) + TOKEN * tokens) * (10 if tokens > plan.num_decodes else 1) / stages / 1e6
        for stage in range(stages):
            arrives = max(arrives, self._free_at[stage]) + rows
            self._free_at[stage] = arrives + sum(self._of_slice(part, stage) for part in layered(plan))
        return Step(self.inner.launch(plan), self.clock, max(self._free_at))

    def _of_slice(self, part: ChunkSlice, stage: int) -> float:
        items = self.limits.layer_items(part.chunk.length)
        if not 0 <= part.first // items.of_round - stage < items.parts:
            return 0.0
        whole = STEP + LONG_TOKEN * part.chunk.length / items.parts
        return whole * (part.stop - part.first) / LAYERS / 1e6

    def close(self) -> None:
        self.inner.close()


def run(part_tokens: int) -> Pipeline:
    """Read a prompt of 4,000 tokens beside four streams, when the machine is known."""
    clock, link = VirtualClock(), ManualLink()
    runner = Pipeline(ShadowRunner(page_size=PAGE, vocab_size=2), clock, limits(part_tokens=part_tokens))
    scheduler = Scheduler(runner.limits, KVManager(num_pages=2000, page_size=PAGE, prefix_caching=False))
    engine = Engine(scheduler, runner, link, depth=3, clock=clock)
    link.put(*(Submit(each, (1,) * 32, resolved(5000)) for each in range(4)))
    for _ in range(60):
        engine.step()
    for request_id in (4, 5):
        began = clock.now()
        runner.plans.clear()
        link.put(Submit(request_id, (1,) * 4000, resolved(1)))
        while not any(output.request_id == request_id for output in link.outputs):
            engine.step()
        runner.seconds = clock.now() - began
    return runner


def test_parts_of_a_chunk_keep_all_stages_busy() -> None:
    """Whole, a chunk would be on one stage at a time, and the other had nothing but decodes."""
    assert run(128).seconds < 0.75 * run(10**6).seconds


def test_a_chunk_is_as_long_as_its_own_items_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was as long as the items of a longer one allow, which has more parts: one of its own took three times as long
    as the step had, and the prompt 11.2 s."""
    for name, value in (("TARGET", 40_000), ("STEP", 20_000.0), ("TOKEN", 1000.0), ("LONG_TOKEN", 3000.0)):
        monkeypatch.setitem(globals(), name, value)
    assert run(128).seconds < 10.5


def test_a_step_of_a_pipeline_has_layers_of_one_round() -> None:
    """Those of the next one need the hidden states that stages send when they have computed their last layer."""
    parts = [part for plan in run(128).plans for part in layered(plan)]
    assert {part.total for part in parts if part.chunk.length >= 1024} == {(8 + 1) * LAYERS // 2}
    assert len(parts) > 20
    assert all(part.first // 10 == (part.stop - 1) // 10 for part in parts)
    assert max(part.stop - part.first for part in parts) > 1
    assert sum(part.stop % 10 == 0 for part in parts) > 9


@pytest.mark.parametrize(
    ("tokens", "parts"), [(1, 1), (127, 1), (255, 1), (256, 2), (1400, 10), (1536, 12), (4096, 12)]
)
def test_a_chunk_of_a_pipeline_has_parts_for_all_stages_at_once(tokens: int, parts: int) -> None:
    """In parts of a few tokens it would wait for weights; a chunk of one part leaves all stages but one idle."""
    items = limits(stages=3).layer_items(tokens)
    assert (items.parts, items.of_round, items.total) == (parts, 7, 7 * (parts + 2))
