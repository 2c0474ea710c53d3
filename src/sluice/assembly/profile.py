"""A profile of chunks at an engine's start, for chunks that take the same time (`--dynamic-chunking 0`)."""

from __future__ import annotations

from dataclasses import replace

from sluice.engine.clock import Clock
from sluice.engine.protocols import Runner
from sluice.scheduler.pacer import LearntPace, Pacing
from sluice.scheduler.setup import SchedulerSetup
from sluice.types import SamplingParams, Submit

CHUNKS = 8
"""Chunks of the prompt that is computed: the last ones show what attention costs."""
FIRST_STEP = -(1 << 30)
"""Ranks answer steps in ascending order, and those of the engine begin at 0."""


def profiled(setup: SchedulerSetup, runner: Runner, clock: Clock, longest: int) -> Pacing:
    """Return what is known of the machine after some steps that compute prompts, and nothing else, were timed.

    The times are part of what the engine's scheduler is built from, so a recorded run plans the same when it is
    replayed. Later requests overwrite the slots and pages that were used.

    Args:
        setup: of the engine's scheduler, whose chunks are by time.
        runner: with nothing in flight.
        longest: most tokens of a request.
    """
    limits = replace(setup.limits, pipeline_stages=1, max_queued_requests=0, max_queued_tokens=0)
    scheduler = replace(
        setup, limits=limits, prefix_caching=False, tiers=replace(setup.tiers, host_pages=0, disk_pages=0), offload=None
    ).build()
    scheduler.state.step = FIRST_STEP
    size = limits.chunked_prefill_size
    longest = min(longest, setup.num_pages * setup.page_size) - 1
    lengths = [size, size // 2, CHUNKS * size]
    for number, length in enumerate(lengths):
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        scheduler.add(Submit(number, (0,) * max(1, min(length, longest)), sampling))
        while (plan := scheduler.schedule()) is not None:
            began = clock.now()
            result = runner.launch(plan).wait()
            micros = round((clock.now() - began) * 1e6)
            scheduler.commit(plan, result, micros if number else 0)  # the first one warms up
    assert scheduler.state.sizer is not None, f"chunks are not by time: {limits}"
    return replace(setup.pacing or Pacing(), learnt=LearntPace(scheduler.state.sizer.learnt(), 0, 0))
