"""The workload of `benchmarks/fleet.py replay`, which is the same live and simulated, and its engine of set times."""

from __future__ import annotations

import time

import pytest

from benchmarks.fleets.replay import ENGINE, Figures, Talks, arrivals_of, compared, simulated
from benchmarks.fleets.timed import VOCAB, WORLD, TimedRunner, setup_of
from sluice.assembly.resolve import resolve
from sluice.config import EngineConfig
from sluice.sim.world import work_of
from sluice.testing import oracle, resolved
from sluice.types import BatchPlan, Chunk, NewSlot, Submit


def test_a_turn_holds_the_turns_before_it_and_the_answers_that_the_shadow_model_gives() -> None:
    arrivals = arrivals_of(Talks(3, rate=1.0, prefix=256, seed=1))
    assert len(arrivals) == 15
    assert [each.time for each in arrivals] == sorted(each.time for each in arrivals)
    for each in arrivals:
        assert each.answer is not None
        answer = oracle(each.tokens(), resolved(max_tokens=each.max_tokens, seed=0), vocab_size=VOCAB)
        assert tuple(each.answer.tokens()) == answer
        so_far = (*each.tokens(), *answer)
        later = [other for other in arrivals if tuple(other.tokens()[: len(so_far)]) == so_far]
        assert all(other.time > each.time for other in later)


def test_the_simulated_router_finds_more_in_caches_than_turns() -> None:
    arrivals = arrivals_of(Talks(12, rate=0.5, prefix=256, seed=1))
    in_turn, aware = simulated("round-robin", arrivals), simulated("prefix-aware", arrivals)
    assert aware.cached_share > in_turn.cached_share
    assert aware.ttft_p50_ms < in_turn.ttft_p50_ms


def test_a_simulated_figure_is_compared_with_the_mean_of_live_ones() -> None:
    runs = [Figures(90.0, 400.0, 0.5), Figures(110.0, 600.0, 0.5)]
    found = compared(runs, Figures(110.0, 250.0, 0.5))
    assert found["ttft_p50_ms"] == {"live": [90.0, 110.0], "simulated": 110.0, "mean": 100.0, "off": pytest.approx(0.1)}
    assert found["ttft_p99_ms"]["off"] == pytest.approx(-0.5)
    assert "off" not in compared(runs, None)["cached_share"]


def test_a_step_of_the_timed_engine_takes_what_the_simulation_says_and_brings_what_the_shadow_model_answers() -> None:
    setup = setup_of(resolve(EngineConfig.from_options(ENGINE), "cpu").config)
    prompt = tuple(range(8))
    chunk = Chunk(request_id=1, slot=0, start=0, length=8, token_ids=prompt, new_pages=(0,), samples=True)
    sampling = resolved(max_tokens=1, seed=0)
    new = NewSlot(slot=0, submit=Submit(request_id=1, prompt=(), sampling=sampling), prompt_len=8)
    plan = BatchPlan(step=0, new_slots=(new,), chunks=(chunk,))
    began = time.perf_counter()
    result = TimedRunner(setup).launch(plan).wait()
    assert time.perf_counter() - began >= WORLD.modelled(work_of(plan, setup))
    assert result.token_ids == (oracle(prompt, sampling, vocab_size=VOCAB),)
