"""Tokens that a grammar forces: a chunk in the middle of an answer; and grammars that take their time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sluice.engine.messages import Abort, Compiled
from sluice.scheduler.request import Status
from sluice.testing import UNUSABLE, ShadowGrammars, oracle, resolved, shadow_grammar
from sluice.types import BatchPlan, BatchResult, FinishReason, Submit
from worlds import VOCAB, Bench, World, check_ends, limits_of

FORCES = shadow_grammar(forces=6)
SOME = shadow_grammar(forces=1)


def plans_of(bench: Bench, *submits: Submit) -> list[BatchPlan]:
    """Run requests to their ends, and return the plans."""
    plans: list[BatchPlan] = []
    schedule = bench.scheduler.schedule

    def seen() -> BatchPlan | None:
        plan = schedule()
        plans.extend([] if plan is None else [plan])
        return plan

    bench.scheduler.schedule = seen  # type: ignore[method-assign]
    bench.link.put(*submits)
    bench.drain(500)
    check_ends(bench, {submit.request_id: submit for submit in submits})
    return plans


def test_forced_tokens_are_computed_in_one_chunk() -> None:
    """One step for each of them would be what they cost without a grammar, and a decode of several tokens would not be
    paid for by the budget of prefill."""
    bench = Bench.of(World(limits_of(chunk=16), num_pages=32, page_size=4))
    plans = plans_of(bench, Submit(0, (1, 0, 1), resolved(40), grammar=FORCES))
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    assert len(chunks) < 30, "40 tokens took a step each"
    assert max(chunk.length for chunk in chunks[1:]) > 3
    assert all(plan.num_decodes == sum(chunk.length == 1 for chunk in plan.chunks) for plan in plans[1:])


def test_a_decode_beside_forced_tokens_has_a_token_in_every_step() -> None:
    """Forced tokens are prefill: they come after decodes, and never in their place."""
    bench = Bench.of(World(limits_of(chunk=4, running=2), num_pages=64, page_size=4))
    free = Submit(0, (0, 1), resolved(30, seed=1))
    plans = plans_of(bench, free, Submit(1, (1, 0, 1), resolved(60), grammar=FORCES))
    rows = Counter(chunk.request_id for plan in plans for chunk in plan.chunks)
    of_free = [index for index, plan in enumerate(plans) if any(chunk.request_id == 0 for chunk in plan.chunks)]
    assert rows[0] == 30
    assert of_free == list(range(30)), f"it was passed over: {of_free}"


def test_forced_tokens_go_before_a_long_prompt() -> None:
    """They belong to a stream, which would otherwise stand still until a prompt is computed."""
    bench = Bench.of(World(limits_of(chunk=8, running=3), num_pages=200, page_size=4, prefix_caching=False))
    bench.link.put(Submit(0, (1, 0, 1), resolved(40), grammar=FORCES))
    bench.step()
    bench.link.put(Submit(1, (0, 1) * 200, resolved(2, seed=1)))
    gap, longest = 0, 0
    while bench.scheduler.state.requests:
        sent = len(bench.link.tokens(0))
        bench.step()
        if len(bench.link.tokens(0)) == 40:
            break
        gap = 0 if len(bench.link.tokens(0)) > sent else gap + 1
        longest = max(longest, gap)
    assert longest <= 1, f"the stream stood still for {longest} steps"
    bench.drain(500)


def test_stop_tokens_and_max_tokens_hold_within_forced_ones() -> None:
    """A stop token that is forced ends the request with it, and what is forced behind `max_tokens` is not sent."""
    for seed in range(20):
        stopping = Submit(0, (1, 0, seed % 2), resolved(9, seed=seed, stop_token_ids=(1,)), grammar=FORCES)
        cut = Submit(1, (0, 0, seed % 2), resolved(7, seed=seed), grammar=FORCES)
        plans_of(Bench.of(World(limits_of(chunk=16), num_pages=32, page_size=4)), stopping, cut)


def test_a_preempted_request_keeps_its_forced_tokens() -> None:
    """They were sent, so they are known when it is computed again, and none is forced twice."""
    bench = Bench.of(World(limits_of(chunk=16, running=4), num_pages=12, page_size=2))
    plans_of(bench, *(Submit(i, (i % 2, 1, 0)[: 2 + i % 2], resolved(9, seed=i), grammar=SOME) for i in range(4)))
    assert bench.scheduler.state.preemptions > 0, "no request was preempted"


def test_nothing_is_planned_for_a_request_that_compiles() -> None:
    """It waits alone: requests that come after it run, and it begins with the report."""
    bench = Bench.of(World(limits_of(), num_pages=32, page_size=4))
    grammars = bench.engine.grammars = ShadowGrammars(bench.link.post, is_late=lambda request_id: request_id == 0)
    late, other = (Submit(i, (1, 0), resolved(3, seed=i), grammar=shadow_grammar()) for i in range(2))
    bench.link.put(late, other)
    for _ in range(8):
        bench.engine.step()
    assert bench.scheduler.state.requests[0].status is Status.COMPILING
    assert bench.scheduler.occupancy().compiling == 1
    assert bench.link.tokens(1) == oracle((1, 0), other.sampling, vocab_size=VOCAB)
    assert bench.scheduler.awaits_report, "the loop would spin instead of waiting for the message"
    grammars.work()
    bench.drain(100)
    check_ends(bench, {0: late, 1: other})
    assert grammars.open == set(), "grammars of requests that have ended are kept"


def test_a_grammar_that_cannot_be_compiled_ends_its_request() -> None:
    """With the reason, and with that of no other."""
    bench = Bench.of(World(limits_of(), num_pages=32, page_size=4))
    good = Submit(1, (1, 0), resolved(3))
    bench.link.put(Submit(0, (1, 0), resolved(3), grammar=UNUSABLE), good)
    bench.drain(100)
    end = bench.link.end(0)
    assert (end.finish_reason, end.error) == (FinishReason.ERROR, "the grammar is unusable")
    check_ends(bench, {1: good})


def test_a_report_of_a_request_that_has_ended_is_ignored() -> None:
    """A client may leave while its grammar is compiled."""
    bench = Bench.of(World(limits_of(), num_pages=32, page_size=4))
    bench.engine.grammars = ShadowGrammars(bench.link.post, is_late=lambda request_id: True)
    bench.link.put(Submit(0, (1, 0), resolved(3), grammar=FORCES))
    bench.engine.step()
    bench.link.put(Abort(0), Compiled(0))
    bench.drain(100)
    assert bench.link.end(0).finish_reason is FinishReason.ABORT
    assert bench.link.tokens(0) == ()


def test_compiling_requests_count_as_waiting() -> None:
    """Else any number of them would pass a bound on what may wait."""
    limits = limits_of(max_queued_requests=1, running=1)
    bench = Bench.of(World(limits, num_pages=32, page_size=4))
    bench.engine.grammars = ShadowGrammars(bench.link.post, is_late=lambda request_id: True)
    bench.link.put(*(Submit(i, (1, 0), resolved(3), grammar=FORCES) for i in range(3)))
    bench.engine.step()
    assert bench.link.end(2).finish_reason is FinishReason.OVERLOAD


def test_tokens_of_compiling_requests_count_as_waiting() -> None:
    """Else prompts of any length would pass a bound on tokens while their grammars are compiled."""
    bench = Bench.of(World(limits_of(max_queued_tokens=10, running=1), num_pages=32, page_size=4))
    bench.engine.grammars = ShadowGrammars(bench.link.post, is_late=lambda request_id: True)
    bench.link.put(*(Submit(i, (1, 0) * 4, resolved(3), grammar=FORCES) for i in range(2)))
    bench.engine.step()
    end = bench.link.end(1)
    assert end.finish_reason is FinishReason.OVERLOAD
    assert end.error is not None
    assert "8 uncached tokens wait and the prompt adds 8" in end.error


def test_a_row_that_brings_nothing_is_computed_once_more() -> None:
    """Its last token, in the next step, in its old place: no token is lost, none is sampled twice, no page is taken
    twice."""
    bench = Bench.of(World(limits_of(chunk=16), num_pages=32, page_size=4))
    runner = bench.engine.runner
    launches = 0

    class Late:
        """Gives no token at every other launch, the prompt's own among them."""

        def launch(self, plan: BatchPlan) -> Late:
            nonlocal launches
            launches += 1
            self._number, self._inner = launches, runner.launch(plan)
            return self

        def wait(self) -> BatchResult:
            result = self._inner.wait()
            is_late = self._number % 2 == 1
            return BatchResult(result.step, tuple(() for _ in result.token_ids)) if is_late else result

        def close(self) -> None:
            runner.close()

    bench.engine.runner = Late()
    submit = Submit(0, (1, 0, 1, 1), resolved(9), grammar=shadow_grammar())
    chunks = [chunk for plan in plans_of(bench, submit) for chunk in plan.chunks]
    assert len(chunks) == 18
    assert all(late.end == again.end for late, again in zip(chunks[::2], chunks[1::2], strict=True))
    assert all(again.length == 1 for again in chunks[1::2])


@pytest.mark.parametrize(
    ("changed", "length"),
    [
        ({"max_prefill_requests": 1}, 20),
        ({"max_prefill_tokens": 64}, 100),
        ({"chunked_prefill_size": 0, "max_batch_tokens": 130}, 120),
        ({"chunked_prefill_size": 24}, 24),
        ({"chunked_prefill_size": 24, "dynamic_chunking": 64}, 24),
        ({"itl_target": 1, "max_partial_prefills": 4}, 32),
    ],
)
def test_forced_tokens_keep_no_prompt_waiting(changed: dict[str, int], length: int) -> None:
    """Some of 16 streams have forced tokens in nearly every step. Where these stood for the step's first prompt, a new
    one had its first token only when the streams ended."""
    limits = replace(limits_of(chunk=64, running=24), **changed)  # type: ignore[arg-type]
    bench = Bench.of(World(limits, num_pages=2000, page_size=8))
    bench.link.put(*(Submit(i, (1, 0, i % 2), resolved(150, seed=i), grammar=SOME) for i in range(16)))
    for _ in range(40):
        bench.step()
    bench.link.put(Submit(16, tuple(i % 2 for i in range(length)), resolved(4, seed=99)))
    for _ in range(12):
        bench.step()
    assert len(bench.scheduler.state.requests) > 15, "the streams have ended"
    assert bench.link.tokens(16), "it still waits"
