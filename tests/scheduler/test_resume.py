"""A request that another engine began goes on behind its tokens, as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios import random_submit
from slow import examples
from sluice.engine.messages import Submit
from sluice.testing import oracle, resolved
from sluice.testing.laws import quiet_means_empty
from sluice.types import FinishReason
from worlds import (
    VOCAB,
    Bench,
    World,
    assert_same_logprobs,
    check_embedding,
    end_of,
    enough_steps,
    limits_of,
    oracle_of,
    worlds,
)


def cut(bench: Bench, submit: Submit) -> Submit:
    """Return the same request with all that was sent of it."""
    return replace(
        submit,
        output_ids=bench.link.tokens(submit.request_id),
        prompt_logprobs_sent=len(bench.link.prompt_logprobs(submit.request_id)),
        is_resumed=True,
    )


@examples(120)
@given(world=worlds(), seed=st.integers(0, 2**32), data=st.data())
def test_a_run_cut_anywhere_goes_on_in_another_engine(world: World, seed: int, data: st.DataObject) -> None:
    """Of both engines together, no token or log-probability is lost, repeated or changed, and `max_tokens` counts the
    tokens before the cut."""
    draw = data.draw(st.randoms(use_true_random=False))
    sent = [random_submit(draw, world, request_id=index, embeds=index == 4) for index in range(draw.randint(1, 5))]
    first, second = Bench.of(world), Bench.of(world)
    first.link.put(*sent)
    for _ in range(data.draw(st.integers(0, 60))):
        first.engine.step()
    ended = {output.request_id for output in first.link.outputs if output.finish_reason is not None}
    left = [cut(first, submit) for submit in sent if submit.request_id not in ended]
    second.link.put(*left)
    second.drain(enough_steps({submit.request_id: submit for submit in left}))
    for submit in left:
        if submit.embeds:
            check_embedding(second.link, submit, faults=False)
            continue
        tokens, logprobs, of_prompt = oracle_of(submit)
        end, request_id = second.link.end(submit.request_id), submit.request_id
        assert submit.output_ids + second.link.tokens(request_id) == tokens
        assert_same_logprobs(first.link.logprobs(request_id) + second.link.logprobs(request_id), logprobs)
        scored = first.link.prompt_logprobs(request_id) + second.link.prompt_logprobs(request_id)
        assert_same_logprobs(scored, of_prompt)
        assert (end.finish_reason, end.start + len(end.token_ids)) == (end_of(tokens, submit), len(tokens))
    quiet_means_empty(second.scheduler.state)


def bench_of() -> Bench:
    return Bench.of(World(limits_of(chunk=8, running=1), num_pages=16, page_size=2))


def test_a_begun_request_goes_before_those_that_were_not() -> None:
    """A stream that had begun must not wait behind prompts of which nothing is computed."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 3, resolved(2)))
    bench.scheduler.add(Submit(1, (0,) * 3, resolved(2), output_ids=oracle([0] * 3, resolved(1), vocab_size=VOCAB)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert [chunk.request_id for chunk in plan.chunks] == [1]


def test_the_room_it_needs_is_that_of_the_whole_request() -> None:
    """Counted with its outputs twice, a request near the pool's size could never be resumed."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 20, resolved(12), output_ids=oracle([1] * 20, resolved(11), vocab_size=VOCAB)))
    bench.drain(10)
    assert bench.link.end(0).finish_reason is FinishReason.LENGTH
    assert bench.link.end(0).start == 11


def test_its_own_outputs_are_not_counted_as_cached_prompt() -> None:
    """Equal outputs may be in the cache as well; `usage` would count more cached tokens than the prompt has."""
    bench = bench_of()
    outputs = oracle([1] * 3, resolved(8), vocab_size=VOCAB)
    bench.scheduler.add(Submit(0, (1,) * 3, resolved(8)))
    bench.drain(20)
    bench.scheduler.add(Submit(1, (1,) * 3, resolved(8), output_ids=outputs[:6]))
    bench.drain(20)
    assert bench.link.end(1).num_cached_tokens == 3


def test_nothing_left_to_do_is_refused() -> None:
    with pytest.raises(ValueError, match="8 tokens were already sent, max_tokens is 8"):
        bench_of().scheduler.scheduler.add(Submit(0, (1,), resolved(8), output_ids=(1,) * 8))


@pytest.mark.parametrize("prompt_logprobs_sent", [-1, 3])
def test_more_logprobs_sent_than_there_are_is_refused(prompt_logprobs_sent: int) -> None:
    """It would skip tokens of the prompt, or take pages whose logits are still wanted."""
    with pytest.raises(
        ValueError, match=f"{prompt_logprobs_sent} prompt log-probabilities were already sent, the prompt has 2"
    ):
        bench_of().scheduler.scheduler.add(
            Submit(0, (1,) * 3, replace(resolved(8), prompt_logprobs=0), prompt_logprobs_sent=prompt_logprobs_sent)
        )
