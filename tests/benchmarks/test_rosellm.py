"""RoseLLM's workload in Sluice's terms: what each way must and must not be able to show, by scheduling alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.peer import Settings
from benchmarks.rosellm import PAIRS, PRESETS, configurations
from sluice.assembly.resolve import resolve
from sluice.bench import options
from sluice.bench.options import resolve_workload
from sluice.bench.workload import Workload, build_workload
from sluice.config import EngineConfig
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import resolved
from sluice.types import BatchPlan, BatchResult, SchedulerLimits, Submit

BUDGET, CHUNK = 224, 64
PAGE_SIZE = 16
STEP_SECONDS, TOKEN_SECONDS = 0.02, 0.0002
"""A machine on which a step costs as much as a hundred tokens of prompt."""
WAYS = {item.label: item for item in configurations(Settings(Path("nowhere"), max_running=64), BUDGET, CHUNK)}


def limits_of(way: str) -> SchedulerLimits:
    """What the engine makes of a way's command line."""
    more = WAYS[way].settings.more
    given = {name.removeprefix("--"): value for name, value in zip(more[::2], more[1::2], strict=True)}
    numbers = {name: int(value) if value.lstrip("-").isdecimal() else value for name, value in given.items()}
    options = numbers | {"max_running_requests": WAYS[way].settings.max_running, "page_size": PAGE_SIZE}
    return resolve(EngineConfig.from_options(options), "cpu").config.scheduler.limits()


def play(workload: Workload, limits: SchedulerLimits) -> tuple[list[BatchPlan], float]:
    """All steps of a workload, and the longest time between two tokens of one request."""
    scheduler = SchedulerSetup(limits, num_pages=4096, page_size=PAGE_SIZE).build()
    coming = list(enumerate(workload.sessions))
    now, plans, last, longest = 0.0, [], dict[int, float](), 0.0
    while True:
        while coming and (coming[0][1].at or 0.0) <= now:
            number, session = coming.pop(0)
            scheduler.add(Submit(number, tuple(session.turns[0].prompt), resolved(session.turns[0].max_tokens)))
        plan = scheduler.schedule()
        if plan is None:
            if not coming:
                return plans, longest
            now = coming[0][1].at or 0.0
            continue
        plans.append(plan)
        now += STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens
        for output in scheduler.commit(plan, BatchResult(plan.step, tuple((1,) for c in plan.chunks if c.samples))):
            if output.token_ids:
                longest = max(longest, now - last.get(output.request_id, now))
                last[output.request_id] = now


def workload(preset: str) -> Workload:
    return build_workload(resolve_workload({"preset": preset}), vocab_size=256)


def most_prefill(plans: list[BatchPlan]) -> int:
    return max(plan.num_tokens - plan.num_decodes for plan in plans)


def test_presets_are_those_of_bench() -> None:
    assert set(PRESETS) <= set(options.PRESETS)
    assert {label for pair in PAIRS for label in pair} == set(WAYS)


def test_unbudgeted_steps_of_the_burst_exceed_twice_the_budget() -> None:
    """Or there is nothing for a budget to show. And no prompt alone is over it, or it could hold nothing back."""
    burst = workload("rosellm-burst")
    assert max(len(session.turns[0].prompt) for session in burst.sessions) <= BUDGET
    for way in ("prefill-first", "whole"):
        assert most_prefill(play(burst, limits_of(way))[0]) > 2 * BUDGET
        assert most_prefill(play(burst, limits_of(f"{way}-budget"))[0]) <= BUDGET


def test_unbudgeted_steps_of_the_long_prompts_exceed_it_too() -> None:
    """But a budget cannot cut the prompt that exceeds it alone: only chunks can."""
    found = workload("rosellm-long")
    for way in ("whole", "whole-budget"):
        assert most_prefill(play(found, limits_of(way))[0]) > 2 * BUDGET
    assert most_prefill(play(found, limits_of("chunked"))[0]) <= CHUNK


def test_in_a_burst_the_budget_shortens_the_longest_gap_and_chunks_shorten_it_further() -> None:
    burst = workload("rosellm-burst")
    whole, budgeted, chunked = (play(burst, limits_of(way))[1] for way in ("whole", "whole-budget", "chunked"))
    assert whole > 1.29 * budgeted
    assert budgeted > 1.1 * chunked


def test_a_budget_spares_streams_nothing_if_prefill_goes_first() -> None:
    """What the budget refuses is the next step, again before decodes: so it is said beside the measurement."""
    burst = workload("rosellm-burst")
    assert play(burst, limits_of("prefill-first-budget"))[1] >= play(burst, limits_of("prefill-first"))[1]
