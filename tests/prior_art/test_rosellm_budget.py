"""The rules of RoseLLM's prefill token budget, one test each."""

from __future__ import annotations

import pytest

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.types import Bound
from support import queue, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(**limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=400, page_size=4))


def test_prompts_are_admitted_in_order_while_their_sum_is_within_the_budget() -> None:
    bench = bench_of(schedule="prefill-first", chunk=0, batch=200, running=8, max_prefill_tokens=20)
    for request_id, length in enumerate([8, 8, 8, 2]):
        queue(bench, request_id, length)
    plans = steps_of(bench, 2)
    assert [[chunk.request_id for chunk in plan.chunks] for plan in plans] == [[0, 1], [2, 3]], "2 does not overtake"
    assert plans[0].bound_by is Bound.MAX_PREFILL_TOKENS


def test_a_first_prompt_over_the_whole_budget_goes_alone() -> None:
    bench = bench_of(schedule="prefill-first", chunk=0, batch=200, running=8, max_prefill_tokens=20)
    queue(bench, 0, 50)
    queue(bench, 1, 2)
    assert shapes_of(bench, 2) == [[(0, 0, 50)], [(1, 0, 2)]]


def test_no_budget_means_no_limit() -> None:
    bench = bench_of(schedule="prefill-first", chunk=0, batch=200, running=8)
    for request_id in range(6):
        queue(bench, request_id, 8)
    assert len(steps_of(bench)[0].chunks) == 6


@pytest.mark.parametrize("value", [0, -5])
def test_a_budget_below_one_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=f"--max-prefill-tokens must be at least 1, got {value}"):
        resolve(EngineConfig.from_options({"max_prefill_tokens": value}), "cpu")


def test_with_chunking_the_budget_holds_and_decodes_come_off_it() -> None:
    bench = bench_of(chunk=64, batch=200, running=8, max_prefill_tokens=20)
    queue(bench, 0, 4)
    queue(bench, 1, 4)
    steps_of(bench)
    queue(bench, 2, 100)
    assert shapes_of(bench) == [[(0, 4, 1), (1, 4, 1), (2, 0, 16)]]


def test_however_many_decodes_run_a_prompt_has_a_page_of_each_step() -> None:
    """Or a small budget and many running requests would starve every prompt."""
    bench = bench_of(chunk=64, batch=200, running=8, max_prefill_tokens=4)
    for request_id in range(5):
        queue(bench, request_id, 4, max_tokens=100)
    steps_of(bench, 5)
    queue(bench, 9, 12)
    assert shapes_of(bench)[0][-1] == (9, 0, 4)


def test_max_prefill_requests_bounds_the_prompts_of_a_step_alone() -> None:
    bench = bench_of(chunk=64, running=8, max_prefill_requests=2)
    for request_id in range(5):
        queue(bench, request_id, 4)
    plans = steps_of(bench, 3)
    assert [sum(chunk.length > 1 for chunk in plan.chunks) for plan in plans] == [2, 2, 1]
    assert plans[0].bound_by is Bound.MAX_PREFILL_REQUESTS
