"""Prompt logprobs in the scheduler: what comes from the cache, and that each is sent once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.engine.messages import Submit
from sluice.scheduler.request import Status
from sluice.testing import resolved
from sluice.types import BatchResult, TokenLogprobs
from support import until_preemption
from worlds import Bench, World, check_ends, limits_of

PROMPT = tuple(i % 2 for i in range(13))


def asking(request_id: int, prompt: Sequence[int] = PROMPT, *, max_tokens: int = 4) -> Submit:
    return Submit(request_id, tuple(prompt), replace(resolved(max_tokens), logprobs=1, prompt_logprobs=2))


def world(**changes: object) -> World:
    return World(**{"limits": limits_of(chunk=4), "num_pages": 40, "page_size": 2} | changes)  # type: ignore[arg-type]


def test_they_are_sent_chunk_by_chunk_and_before_the_first_token() -> None:
    """Logprobs that wait to be sent are bounded by the chunk, for any length of the prompt."""
    bench = Bench.of(world())
    bench.link.put(asking(0))
    bench.drain(100)
    logprobs = [(len(out.prompt_logprobs), len(out.token_ids)) for out in bench.link.outputs]
    assert logprobs == [(4, 0), (4, 0), (4, 1), (0, 1), (0, 1), (0, 1)]
    check_ends(bench, {0: asking(0)})


def test_one_that_asks_takes_nothing_from_the_cache_and_others_still_do() -> None:
    """With prompt logprobs from position p no more than p tokens may come from the cache; and it says so."""
    bench = Bench.of(world())
    plain = [Submit(i, PROMPT, resolved(4)) for i in (0, 2)]
    for submit in (plain[0], asking(1), plain[1]):
        bench.link.put(submit)
        bench.drain(100)
    assert [bench.link.end(i).num_cached_tokens for i in range(3)] == [0, 0, 12]
    check_ends(bench, {0: plain[0], 1: asking(1), 2: plain[1]})


def test_one_that_asks_is_not_held_back_for_pages_it_may_not_use() -> None:
    """A duplicate waits for the pages of its leader; this request could not use them."""
    bench = Bench.of(world(limits=limits_of(chunk=26, batch=64)))
    submits = {0: Submit(0, PROMPT, resolved(4)), 1: asking(1), 2: Submit(2, PROMPT, resolved(4))}
    bench.link.put(*submits.values())
    bench.engine.step()
    started = [request.id for request in bench.scheduler.state.running()]
    assert started == [0, 1]
    bench.drain(100)
    assert bench.link.end(2).num_cached_tokens == 12
    check_ends(bench, submits)


def test_others_wait_for_the_pages_of_one_that_asks() -> None:
    bench = Bench.of(world(limits=limits_of(chunk=26, batch=64)))
    submits = {0: asking(0), 1: Submit(1, PROMPT, resolved(4))}
    bench.link.put(*submits.values())
    bench.engine.step()
    assert [request.id for request in bench.scheduler.state.running()] == [0]
    bench.drain(100)
    assert bench.link.end(1).num_cached_tokens == 12


def test_sent_logprobs_are_not_computed_again_after_a_preemption() -> None:
    """Its own pages are still cached: those whose logprobs were sent come from there, and no logprob is sent twice."""
    bench = Bench.of(world(num_pages=12))
    submits = {0: replace(asking(0, (0, 1), max_tokens=20), priority=0), 1: asking(1, PROMPT, max_tokens=6)}
    bench.link.put(*submits.values())
    (victim,) = until_preemption(bench)
    assert victim == 1
    while bench.scheduler.state.requests[1].status is not Status.WAITING:
        bench.engine.step()
    request = bench.scheduler.state.requests[1]
    assert request.prompt_logprobs_sent == request.num_targets == len(PROMPT) - 1
    bench.drain(200)
    check_ends(bench, submits)


def test_a_preemption_in_the_middle_of_a_prompt_resumes_behind_the_sent_logprobs() -> None:
    """Cut after the logprobs of 8 tokens: whole pages of these may come from the cache; the rest is sent once."""
    bench = Bench.of(world(page_size=4, limits=limits_of(chunk=8)))
    bench.link.put(asking(0, PROMPT * 3))
    bench.engine.step()
    state = bench.scheduler.state
    request = state.requests[0]
    assert (request.prompt_logprobs_sent, request.computed) == (8, 8)
    state.preempt(request)
    bench.engine.step()
    assert (request.cached, request.prompt_logprobs_sent) == (8, 16)
    bench.drain(100)
    check_ends(bench, {0: asking(0, PROMPT * 3)})


def test_a_chunk_that_begins_in_sent_logprobs_sends_the_rest() -> None:
    """Cut otherwise the second time: 8 logprobs were sent, the chunk of 12 that holds them gives 12 and sends 4."""
    bench = Bench.of(world(page_size=4, limits=limits_of(chunk=12)))
    first, submit = Submit(0, (1, 1, 1, 1), resolved(1)), asking(1, PROMPT * 3)
    bench.link.put(first, submit)
    bench.engine.step()
    request = bench.scheduler.state.requests[1]
    assert request.prompt_logprobs_sent == 8
    bench.scheduler.forget_device()
    bench.engine.runner = bench.world.shadow()
    bench.engine.step()
    assert (request.computed, request.prompt_logprobs_sent, len(bench.link.outputs[-1].prompt_logprobs)) == (12, 12, 4)
    bench.drain(100)
    check_ends(bench, {0: first, 1: submit})


def test_a_prompt_of_one_token_has_nothing_to_tell() -> None:
    bench = Bench.of(world())
    bench.link.put(asking(0, (1,)))
    bench.drain(100)
    assert bench.link.prompt_logprobs(0) == ()
    check_ends(bench, {0: asking(0, (1,))})


def test_logprobs_end_with_the_token_that_ends_the_request() -> None:
    """A speculating runner gives several tokens for a row; those behind the end are dropped, with the logprobs of
    them."""
    bench = Bench.of(world())
    params = replace(resolved(8, stop_token_ids=(6,)), logprobs=0)
    bench.scheduler.add(Submit(0, (1, 2), params))
    plan = bench.scheduler.schedule()
    assert plan is not None
    logprobs = tuple(TokenLogprobs(token, -1.0, ()) for token in (5, 6, 7))
    (output,) = bench.scheduler.commit(plan, BatchResult(plan.step, ((5, 6, 7),), logprobs=(logprobs,)))
    assert (output.token_ids, output.logprobs) == ((5, 6), logprobs[:2])


def test_a_chunk_of_sent_logprobs_has_no_targets() -> None:
    """Scoring it once more would cost as much as the first time, for nothing."""
    bench = Bench.of(world(page_size=4, limits=limits_of(chunk=8)))
    bench.scheduler.add(Submit(0, PROMPT * 3, asking(0).sampling))
    runner = bench.world.shadow()
    for _ in range(2):
        plan = bench.scheduler.schedule()
        assert plan is not None
        bench.scheduler.commit(plan, runner.launch(plan).wait())
    bench.scheduler.forget_device()
    targets = []
    for _ in range(3):
        plan = bench.scheduler.schedule()
        assert plan is not None
        targets.append([len(chunk.targets) for chunk in plan.chunks])
        bench.scheduler.commit(plan, runner.launch(plan).wait())
    assert targets == [[0], [0], [8]]
