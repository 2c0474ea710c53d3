"""The rules of SGLang's chunked prefill, one test each."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluice.assembly.resolve import resolve
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.engine.trace import ChunkLog, RecentSteps
from sluice.scheduler.request import Status
from sluice.scheduler.reserve import CLIPPED_OUTPUT, RatioReservation
from sluice.testing import ManualLink, resolved
from sluice.types import Bound, FinishReason
from support import queue, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 400, page_size: int = 4, caching: bool = True, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=pages, page_size=page_size, prefix_caching=caching))


def test_chunked_prefill_size_is_shared_by_all_prompts_of_a_step() -> None:
    bench = bench_of(chunk=16, running=4)
    queue(bench, 0, 10)
    queue(bench, 1, 14)
    assert shapes_of(bench, 2) == [[(0, 0, 10), (1, 0, 4)], [(0, 10, 1), (1, 4, 10)]]


@pytest.mark.parametrize("off", [-1, 0])
def test_a_chunked_prefill_size_of_minus_one_or_zero_turns_chunking_off(off: int) -> None:
    config = resolve(EngineConfig.from_options({"chunked_prefill_size": off}), "cpu").config
    bench = Bench.of(World(config.scheduler.limits(), num_pages=400, page_size=32))
    queue(bench, 0, 5000)
    assert shapes_of(bench) == [[(0, 0, 5000)]]


def test_one_request_at_a_time_is_half_prefilled_and_goes_first() -> None:
    bench = bench_of(chunk=12, running=4)
    queue(bench, 0, 20)
    queue(bench, 1, 36)
    assert shapes_of(bench, 5) == [
        [(0, 0, 12)],
        [(0, 12, 8), (1, 0, 4)],
        [(0, 20, 1), (1, 4, 12)],
        [(0, 21, 1), (1, 16, 12)],
        [(0, 22, 1), (1, 28, 8)],
    ]


def test_what_the_cache_has_is_not_computed_but_for_the_last_token() -> None:
    """fill_ids = prompt + outputs, prefix_indices = what is in KV, extend_input_len = the difference."""
    bench = bench_of(chunk=16, running=4)
    queue(bench, 0, 12, token=7)
    steps_of(bench)
    queue(bench, 1, 12, token=7)
    assert shapes_of(bench) == [[(0, 12, 1), (1, 8, 4)]], "three pages are cached, the last one is computed again"


def test_memory_stops_admission_before_the_budget_is_used_up() -> None:
    bench = bench_of(chunk=16, running=4, pages=12)
    queue(bench, 0, 8, max_tokens=8)
    queue(bench, 1, 30, max_tokens=8)
    plans = steps_of(bench)
    assert [chunk.request_id for plan in plans for chunk in plan.chunks] == [0]
    assert plans[0].bound_by is Bound.KV_PAGES


def test_memory_is_checked_for_the_whole_prompt_and_its_output_even_if_it_is_cut() -> None:
    bench = bench_of(chunk=8, running=4, pages=16, conservativeness=1.0)
    queue(bench, 0, 30, max_tokens=8)
    steps_of(bench)
    queue(bench, 1, 24, max_tokens=8)
    assert [chunk.request_id for chunk in steps_of(bench)[0].chunks] == [0], "10 pages are spoken for, 8 are wanted"


def test_a_prompt_that_is_cut_reserves_no_output() -> None:
    bench = bench_of(chunk=8, running=4)
    queue(bench, 0, 4, max_tokens=50)
    queue(bench, 1, 20, max_tokens=50)
    plan = bench.scheduler.schedule()
    assert plan is not None
    requests, rule = bench.scheduler.state.requests, RatioReservation(1.0)
    assert rule.tokens(requests[0]) == 4 + 50
    assert rule.tokens(requests[1]) == 20
    assert CLIPPED_OUTPUT == 4096
    queue(bench, 2, 4, max_tokens=1400)
    requests[2].max_tokens = 100_000
    assert rule.tokens_at_admission(requests[2]) == 4 + 4096


def test_a_prompt_is_cut_behind_others_when_the_prefill_budget_is_larger_than_a_chunk() -> None:
    bench = bench_of(chunk=16, running=4, batch=100, max_prefill_tokens=40)
    queue(bench, 0, 6)
    queue(bench, 1, 30)
    assert shapes_of(bench) == [[(0, 0, 6), (1, 0, 8)]], "30 < 34 left: cut to the chunk; and nothing after it"


def test_a_prompt_is_cut_alone_when_the_prefill_budget_is_not_larger_than_a_chunk() -> None:
    bench = bench_of(chunk=16, running=4, batch=100, max_prefill_tokens=16)
    queue(bench, 0, 6)
    queue(bench, 1, 30)
    queue(bench, 2, 2)
    assert shapes_of(bench, 2) == [[(0, 0, 6)], [(0, 6, 1), (1, 0, 12)]]


def test_no_prompt_is_admitted_behind_one_that_is_cut() -> None:
    bench = bench_of(chunk=10, running=4)
    queue(bench, 0, 30)
    queue(bench, 1, 1)
    assert shapes_of(bench) == [[(0, 0, 8)]], "two tokens are left, and the next prompt has one: it waits all the same"


def test_a_half_computed_prompt_is_not_skipped_for_what_others_may_need() -> None:
    """Reservations leave it nothing, and it goes on with the pages there are."""
    bench = bench_of(chunk=8, running=4, pages=20, conservativeness=1.0)
    queue(bench, 0, 4, max_tokens=2)
    queue(bench, 1, 40, max_tokens=8)
    steps_of(bench, 2)
    state = bench.scheduler.state
    state.requests[1].max_tokens = 10_000
    assert state.partial.keys() == {1}
    assert shapes_of(bench) == [[(1, 12, 8)]]


def test_running_decodes_join_the_prefill_batch() -> None:
    bench = bench_of(chunk=8, running=4, batch=9, max_prefill_tokens=9)
    queue(bench, 0, 2)
    queue(bench, 1, 2)
    steps_of(bench)
    queue(bench, 2, 30)
    assert shapes_of(bench) == [[(0, 2, 1), (1, 2, 1), (2, 0, 4)]], "two decodes come off 9, 7 is cut to a page"


def test_prefill_first_runs_decodes_only_when_there_is_no_prefill() -> None:
    bench = bench_of(schedule="prefill-first", chunk=8, running=4)
    queue(bench, 0, 2)
    steps_of(bench)
    queue(bench, 1, 14)
    assert shapes_of(bench, 3) == [[(1, 0, 8)], [(1, 8, 6)], [(0, 2, 1), (1, 14, 1)]]


def test_the_chunk_of_a_diffusion_model_is_its_block() -> None:
    """`--dllm-prefill block`; what is left of the prompt joins the open block. Without it, chunks are ordinary."""
    bench = bench_of(chunk=16, running=4, batch=64, block_size=4, prefills_by_block=True)
    queue(bench, 0, 10)
    assert shapes_of(bench, 3) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 4)]]
    ours = bench_of(chunk=16, running=4, batch=64, block_size=4)
    queue(ours, 0, 10)
    assert shapes_of(ours) == [[(0, 0, 12)]]


def test_a_request_waits_prefills_decodes_waits_again_when_preempted_and_ends() -> None:
    bench = bench_of(chunk=8, running=4)
    queue(bench, 0, 14, max_tokens=2)
    request = bench.scheduler.state.requests[0]
    statuses = [request.status]
    for _ in range(2):
        steps_of(bench)
        statuses.append(request.status)
    bench.scheduler.state.preempt(request)
    statuses.append(request.status)
    while bench.scheduler.has_work:
        steps_of(bench)
    statuses.append(request.status)
    assert statuses == [Status.WAITING, Status.PARTIAL, Status.DECODING, Status.WAITING, Status.GONE]
    assert request.finish_reason is FinishReason.LENGTH


def test_each_chunk_is_logged_with_its_request_number_length_and_prefix(caplog: pytest.LogCaptureFixture) -> None:
    world = World(limits_of(chunk=8, running=2), num_pages=40, page_size=4)
    link, trace = ManualLink(), ChunkLog(RecentSteps())
    engine = Engine(world.scheduler(), world.shadow(), link, trace=trace)
    with caplog.at_level(logging.INFO, logger="sluice.engine"):
        link.put(Submit(7, (1, 0) * 11, resolved(1)))
        engine.step()
        while not engine.is_idle:
            engine.step()
    assert [record.getMessage() for record in caplog.records] == [
        "request 7: chunk 1 of its prompt in step 0: extend_len 8, from 0, cached prefix 0",
        "request 7: chunk 2 of its prompt in step 1: extend_len 8, from 8, cached prefix 0",
        "request 7: chunk 3 of its prompt in step 2: extend_len 6, from 16, cached prefix 0, the last",
    ]
    assert trace.latest is not None
    assert trace.latest.prefill_tokens == 6


def predict_next_chunk_size(history_len: int, *, base: int, token: float, pair: float, smoothing: float) -> float:
    """SGLang's: where a prompt of n tokens takes token n + pair n n / 2, the tokens behind a history that take as long
    as the first chunk, drawn to its size, and a quarter of it at least."""
    slope = token + pair * history_len
    whole = token * base + pair * base * base / 2
    equal = 2 * whole / (slope + (slope * slope + 2 * pair * whole) ** 0.5)
    return max(base / 4, base + smoothing * (equal - base))


@pytest.mark.parametrize("smoothing", [0.75, 1.0])
@pytest.mark.parametrize("doubles_at", [4000, 30_000])
def test_dynamic_chunks_take_as_long_as_the_first_one(smoothing: float, doubles_at: int) -> None:
    bench = bench_of(pages=2000, page_size=32, chunk=2048, dynamic_chunking=doubles_at, batch=3000)
    limits = replace(bench.world.limits, dynamic_chunking_smoothing=smoothing)
    bench = Bench.of(replace(bench.world, limits=limits))
    queue(bench, 0, 40_000)
    chunks = [plan.chunks[0] for plan in steps_of(bench, 10)]
    assert chunks[0].length == 2048
    for chunk in chunks:
        expected = predict_next_chunk_size(chunk.start, base=2048, token=1.0, pair=1 / doubles_at, smoothing=smoothing)
        assert expected - 65 <= chunk.length <= expected + 1
        assert chunk.length % 64 == 0
