"""Guesses in an engine: which requests have drafts, and which give up overlap for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recording import RecordingRunner
from sluice.engine.messages import FlushCache, Submit
from sluice.scheduler.drafting.draft_rows import STEP_DRAFTS
from sluice.scheduler.drafting.guesser import Drafts, RunnerGuesser
from sluice.scheduler.drafting.measured_drafter import MeasuredDrafter, drafter_of
from sluice.scheduler.drafting.ngram import NgramGuesser
from sluice.scheduler.request import Request, Status
from sluice.testing import resolved
from sluice.types import NGRAM, BatchPlan, DraftLimits
from worlds import Bench, World, check_ends, limits_of

WORLD = World(
    replace(limits_of(chunk=16, running=4), num_draft_tokens=4), num_pages=128, page_size=4, drafting=DraftLimits(NGRAM)
)
OVERLAP = replace(WORLD, limits=replace(WORLD.limits, lookahead=1), depth=2, late=True)
AGAIN = Submit(1, (0, 1, 1, 0, 1), resolved(40))


VOCAB = 1000
"""Of an answer that hardly repeats itself."""


def play(world: World, *submits: Submit, flush: bool = False) -> list[BatchPlan]:
    """Run one request after the other. Returns the plans of the last."""
    bench = Bench.of(world, runner := RecordingRunner(world.shadow(VOCAB)))
    for submit in submits:
        runner.plans.clear()
        bench.link.put(submit)
        bench.drain(1000)
        if flush:
            bench.link.put(FlushCache(1))
            bench.step()
    check_ends(bench, {submit.request_id: submit for submit in submits}, vocab_size=VOCAB)
    return runner.plans


def drafts(plans: list[BatchPlan]) -> int:
    return sum(plan.num_drafts for plan in plans)


def test_an_answer_that_was_given_before_takes_few_steps() -> None:
    plans = play(WORLD, AGAIN, replace(AGAIN, request_id=2))
    assert drafts(plans) > 20
    assert len(plans) < 20


@pytest.mark.parametrize("extra_key", ["", "other"])
def test_no_answer_of_another_tenant_or_before_a_flush_is_guessed_from(extra_key: str) -> None:
    plans = play(WORLD, AGAIN, replace(AGAIN, request_id=2, extra_key=extra_key), flush=not extra_key)
    assert drafts(plans) == 0
    assert len(plans) == 40


def test_overlap_is_given_up_where_guesses_are_right() -> None:
    """A request with a lookahead always had a token pending, and so never a draft."""
    plans = play(OVERLAP, AGAIN, replace(AGAIN, request_id=2))
    assert drafts(plans) > 20
    assert len(plans) < 25
    late = [chunk for plan in play(OVERLAP, AGAIN) for chunk in plan.chunks if len(chunk.token_ids) < chunk.length]
    assert len(late) > 30, "a request without guesses is planned before its last token is known"


def test_overlap_goes_on_where_guesses_are_wrong() -> None:
    """A request that was always guessed for wrongly waited for each of its tokens."""
    drafter, request = drafter_of(DraftLimits(NGRAM), 4), Request(Submit(1, (1, 2, 1, 2), resolved(1000)))
    assert drafter.pays(1)
    waits = 0
    for _ in range(200):
        if drafter.wants(request):
            waits += 1
            drafter.choose(1, {1: drafter.propose(request, 2)}, 9)
            drafter.verified(request, 2, 0)
        request.tokens.append(1 + len(request.tokens) % 2)
    assert 2 <= waits <= 10
    drafter.verified(request, 2, 1)
    assert drafter.wants(request)


def test_a_runner_that_guesses_is_asked_for_as_many_as_are_worth_it() -> None:
    drafter = MeasuredDrafter(RunnerGuesser(), 4)
    request = Request(Submit(1, (1, 2), resolved(100)))
    for _ in range(100):
        if drafter.pays(1):
            found = drafter.choose(1, {1: drafter.propose(request, 4)}, 9)
            if found:
                drafter.verified(request, len(found[1]), 0)
    assert drafter.choose(1, {1: drafter.propose(request, 4)}, 9).get(1, ()) in ((), (0, 0), (0,))
    for _ in range(100):
        found = drafter.choose(1, {1: drafter.propose(request, 4)}, 9)
        if found:
            drafter.verified(request, len(found[1]), len(found[1]))
    assert drafter.choose(1, {1: drafter.propose(request, 4)}, 9) == {1: (0, 0, 0, 0)}


def test_a_step_has_no_more_drafts_than_there_is_memory_for() -> None:
    """The samples of all drafts of a large batch had logits that did not fit beside the pool."""
    limits = replace(limits_of(chunk=64, running=24, batch=400), num_draft_tokens=8)
    world = World(limits, num_pages=400, page_size=4, drafts_eager=True, drafts_right=1.0)
    bench = Bench.of(world, runner := RecordingRunner(world.shadow()))
    submits = {number: Submit(number, (number % 2, 1), resolved(60)) for number in range(24)}
    for submit in submits.values():
        bench.link.put(submit)
    bench.drain(1000)
    check_ends(bench, submits)
    assert max(plan.num_drafts for plan in runner.plans) == STEP_DRAFTS


class CountingGuesser(NgramGuesser):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def propose(self, request: Request, at_most: int) -> Drafts:
        self.asked += 1
        return super().propose(request, at_most)

    def hopes(self, request: Request) -> bool:
        self.asked += 1
        return super().hopes(request)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_batch_without_guesses_asks_for_about_one_request_in_a_step(overlaps: bool) -> None:
    """Looking up all of 32 requests took a sixth of each step."""
    drafter = MeasuredDrafter(guesser := CountingGuesser(), 4)
    requests = [Request(Submit(number, tuple(range(50)), resolved(1000))) for number in range(12)]
    asked = []
    for step in range(200):
        before = guesser.asked
        wanted = [request for request in requests if drafter.wants(request)] if overlaps else requests
        assert drafter.pays(12)
        for request in drafter.awake(wanted):
            drafter.propose(request, 4)
            request.tokens.append(100 + step)
        asked.append(guesser.asked - before)
    assert asked[0] >= 12
    assert 80 <= sum(asked[-100:]) <= 130


def test_a_request_that_has_drafts_is_asked_for_in_each_step() -> None:
    drafter = MeasuredDrafter(guesser := CountingGuesser(), 4)
    request, other = (Request(Submit(number, (1, 2) * 20, resolved(1000))) for number in (1, 2))
    for step in range(20):
        assert drafter.pays(2)
        assert drafter.awake([request, other]) == ([request, other] if step % 2 == 0 else [request])
        found = {1: drafter.propose(request, 4)}
        if step % 2 == 0:
            drafter.propose(other, 4)  # it has none, and rests
        chosen = drafter.choose(2, found, 4)
        drafter.verified(request, len(chosen[1]), len(chosen[1]))
    assert guesser.asked == 20 + 10


def test_what_a_large_batch_costs_says_nothing_of_a_context_longer_than_the_device() -> None:
    """An offloaded request had no drafts for as long as the last batch of others had been large."""
    drafter = drafter_of(DraftLimits(NGRAM), 4)
    request = Request(Submit(1, (1, 2) * 20, resolved(1000)))
    assert not drafter.pays(64)
    assert not drafter.wants(request)
    request.status = Status.OFFLOADED
    assert drafter.wants(request)
    assert drafter.propose_alone(request, [100.0, 100.0, 100.0]) == (1, 2)
