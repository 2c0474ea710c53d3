"""Tests for simulated replicas: virtual time, what a router sees, and the ends of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.config import ConfigError
from sluice.routing.dispatch import RoutedRequest
from sluice.routing.policies import RoundRobin
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.routers import SimRouter
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.workload import Arrival, KnownTokens, Leaves, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import NGRAM, DraftLimits, Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=256, page_size=8)
STEP, TOKEN = 1000.0, 100.0
WORLD = World(dict.fromkeys(Regime, (STEP, TOKEN, 0.0, 0.0, 0.0, 0.0)))
"""A step takes a millisecond, and a tenth of one for each token."""


def arrival(time: float, length: int, output: int, **more: object) -> Arrival:
    fields = {"max_tokens": output, "prompt": Prompt((Segment(length + round(1000 * time), length),))} | more
    return Arrival(time=time, output_tokens=output, **fields)  # type: ignore[arg-type]


def test_times_of_a_lone_request_follow_from_the_costs() -> None:
    """Time that is counted twice, or not at all, would move every figure."""
    [record] = simulate([arrival(0.5, 100, 3)], replicas_of(SETUP, WORLD))
    # Two chunks of the prompt, 64 and 36 tokens, and then two decodes.
    first = 0.5 + (1 + 6.4 + 1 + 3.6) / 1000
    assert [round(each.at, 6) for each in record.arrivals] == pytest.approx([first, first + 0.0011, first + 0.0022])
    assert (record.due, record.finish_reason, record.num_tokens) == (0.5, "length", 3)


def test_an_answer_ends_by_its_recorded_length_below_max_tokens() -> None:
    """The scheduler reserves memory for max_tokens, so it must not be told the length."""
    records = simulate([arrival(0, 10, 3, max_tokens=50), arrival(0, 10, 3)], replicas_of(SETUP, WORLD))
    assert [(each.finish_reason, each.num_tokens) for each in records] == [("stop", 3), ("length", 3)]


def test_gaps_between_steps_and_intake_take_time() -> None:
    """Without the time between steps, capacity comes out too high."""
    costs = dict.fromkeys(Regime, (STEP, TOKEN, 0.0, 0.0, 0.0, 0.0))
    world = World(costs, (Residual(Regime.DECODE, 1.0, 0.002),), intake=0.01)
    [record] = simulate([arrival(0, 10, 3)], replicas_of(SETUP, world))
    first, second, third = (each.at for each in record.arrivals)
    assert first == pytest.approx(0.01 + 0.002)
    assert (second - first, third - second) == pytest.approx((0.0031, 0.0031))


def test_a_router_sees_no_step_before_it_ends() -> None:
    """A step that was launched would show its tokens, and freed memory, before they are there."""
    seen: list[tuple[int, ...]] = []

    [replica] = replicas_of(SETUP, WORLD)

    class Watch(SimRouter):
        def route(self, request_id: int, request: RoutedRequest, now: float) -> int:
            seen.append((replica.occupancy().running, replica.occupancy().waiting, self.loads[0].num_requests))
            return super().route(request_id, request, now)

    # The first request's one step lasts from 0 to 0.002: at 0.0015 it runs, at 0.0025 it is over.
    requests = [arrival(0, 10, 1), arrival(0.0015, 10, 1), arrival(0.0045, 10, 1)]
    simulate(requests, [replica], Watch(RoundRobin(), 1))
    assert seen == [(0, 0, 0), (1, 0, 1), (0, 0, 0)]


def test_conversations_share_what_their_turns_have_in_common() -> None:
    """A later turn finds the earlier one and its answer in the cache."""
    question, answer = Prompt((Segment(1, 40),)), Prompt((Segment(2, 25),))
    follow_up = question + answer + Prompt((Segment(3, 10),))
    records = simulate(
        [
            arrival(0, 1, 25, prompt=question, answer=answer, session="a"),
            arrival(5, 1, 4, prompt=follow_up, session="a"),
            arrival(9, 1, 4, prompt=KnownTokens(follow_up.tokens()[:33])),
        ],
        replicas_of(SETUP, WORLD),
    )
    # The last token of the answer was sampled and never computed: 64 of 75 tokens are full pages in the cache.
    assert [record.cached_tokens for record in records] == [0, 64, 32]
    assert [(record.session, record.turn) for record in records] == [(0, 0), (0, 1), (2, 0)]


REPEATED = KnownTokens((5, 6, 7, 8) * 20)
"""An answer that n-grams guess from its second line on."""


def with_drafts(algorithm: str = NGRAM) -> SchedulerSetup:
    return replace(SETUP, limits=replace(LIMITS, num_draft_tokens=4), drafting=DraftLimits(algorithm))


@pytest.mark.parametrize("max_tokens", [80, 90])
def test_drafts_are_accepted_as_far_as_they_are_the_answer(max_tokens: int) -> None:
    """As many tokens in fewer steps, and not one of them before it could be there."""
    requests = [arrival(0, 10, 80, max_tokens=max_tokens, answer=REPEATED)]
    [plain] = simulate(requests, replicas_of(SETUP, WORLD))
    [drafted] = simulate(requests, replicas_of(with_drafts(), WORLD))
    assert (drafted.num_tokens, drafted.finish_reason) == (plain.num_tokens, plain.finish_reason)
    assert len(drafted.arrivals) < len(plain.arrivals) / 2
    assert max(each.tokens for each in drafted.arrivals) == 5
    assert drafted.ended < 0.7 * plain.ended


def test_a_client_leaves_in_the_middle_of_what_a_row_brings() -> None:
    """The step in which it reads its last token brings more."""
    requests = [arrival(0, 10, 80, answer=REPEATED, leaves=Leaves(after_tokens=count)) for count in range(1, 20)]
    for count, each in enumerate(requests, start=1):
        [record] = simulate([each], replicas_of(with_drafts(), WORLD))
        assert count <= record.num_tokens < count + 5
        assert record.failure is not None


def test_drafts_that_cannot_be_simulated_are_refused() -> None:
    """Answers without tokens would show drafts that are never accepted, and a draft model is not there."""
    with pytest.raises(ConfigError, match="drafts needs the tokens of the answers"):
        simulate([arrival(0, 10, 8)], replicas_of(with_drafts(), WORLD))
    with pytest.raises(ConfigError, match="no draft model"):
        replicas_of(with_drafts("draft-model"), WORLD)


def test_clients_leave_after_tokens_or_after_seconds() -> None:
    """Aborts are recorded at a time, and under another policy the token counts."""
    requests = [
        arrival(0, 10, 20, leaves=Leaves(after_tokens=3)),
        arrival(0, 400, 20, leaves=Leaves(after_seconds=0.02)),
    ]
    by_tokens, by_time = simulate(requests, replicas_of(SETUP, WORLD))
    assert by_tokens.failure is not None
    assert by_tokens.failure.kind == "left"
    assert by_tokens.num_tokens == 3
    assert by_time.num_tokens == 0
    assert by_time.ended < 0.03


def test_replicas_share_the_load() -> None:
    """Each would have run all requests, or one alone."""
    requests = [arrival(0.001 * index, 64, 8) for index in range(40)]
    one = simulate(requests, replicas_of(SETUP, WORLD, 1))
    four = simulate(requests, replicas_of(SETUP, WORLD, 4))
    assert max(record.ended for record in four) < 0.5 * max(record.ended for record in one)


def test_steps_in_flight_end_one_after_the_other() -> None:
    """With depth 2 the next step is launched before the first ends, and the device does one at a time."""
    limits = SchedulerLimits(
        schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8, lookahead=1
    )
    setup = SchedulerSetup(limits, num_pages=256, page_size=8)
    [record] = simulate([arrival(0, 10, 5)], replicas_of(setup, WORLD, depth=2))
    gaps = [later.at - sooner.at for sooner, later in zip(record.arrivals, record.arrivals[1:], strict=False)]
    assert gaps == pytest.approx([0.0011] * 4)


def test_a_request_that_the_scheduler_refuses_fails() -> None:
    """One that is longer than the pool would wait for ever."""
    [record] = simulate([arrival(0, 5000, 4)], replicas_of(SETUP, WORLD))
    assert record.failure is not None
    assert "pool" in record.failure.message


def test_a_router_that_chooses_no_replica_is_named() -> None:
    """An index from the end would be taken for another replica."""

    class Wrong(SimRouter):
        def route(self, request_id: int, request: RoutedRequest, now: float) -> int:
            return -1

    with pytest.raises(ConfigError, match="chose replica -1 of 2"):
        simulate([arrival(0, 8, 1)], replicas_of(SETUP, WORLD, 2), Wrong(RoundRobin(), 2))


def test_equal_seeds_give_equal_records() -> None:
    """A result that cannot be had again cannot be argued about."""
    residuals = tuple(Residual(Regime.DECODE, 0.5 + index % 7 / 5, 0.0) for index in range(100))
    world = World(dict.fromkeys(Regime, (STEP, TOKEN, 0.0, 0.0, 0.0, 0.0)), residuals)
    requests = [arrival(0.01 * index, 30, 9) for index in range(30)]
    runs = [simulate(requests, replicas_of(SETUP, world, 2, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
