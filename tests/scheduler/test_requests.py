"""The methods of the scheduler: add, abort, commit, fail, and the outputs of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from recording import RecordingRunner
from sluice.engine.protocols import Runner
from sluice.scheduler.scheduler import DuplicateRequest
from sluice.testing import Faults, FaultyRunner, oracle, resolved
from sluice.testing.laws import quiet_means_empty
from sluice.types import BatchPlan, BatchResult, FinishReason, RowError, Submit
from worlds import VOCAB, Bench, World, check_ends, limits_of


def bench_of(**rest: int) -> Bench:
    return Bench.of(World(limits_of(chunk=8, running=4), num_pages=rest.get("pages", 16), page_size=2))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one token"):
        bench_of().scheduler.scheduler.add(Submit(0, (), resolved()))


def test_a_request_that_never_fits_the_pool_is_refused_with_the_numbers() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 24, resolved(8)))
    with pytest.raises(ValueError, match=r"prompt of 25 tokens \+ max_tokens 8 exceed the KV pool of 32 tokens"):
        bench.scheduler.scheduler.add(Submit(1, (1,) * 25, resolved(8)))


def test_an_id_in_use_is_refused() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,), resolved()))
    with pytest.raises(DuplicateRequest, match="request id 0 is in use"):
        bench.scheduler.scheduler.add(Submit(0, (1,), resolved()))


def test_aborting_a_waiting_request_ends_it_at_once() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,), resolved()))
    (output,) = bench.scheduler.abort(0, FinishReason.STOP)
    assert (output.finish_reason, output.token_ids, output.start) == (FinishReason.STOP, (), 0)
    assert not bench.scheduler.has_work


def test_an_abort_says_how_much_of_the_prompt_came_from_the_cache() -> None:
    """None, if it never ran."""
    bench = bench_of()
    for request_id in range(2):
        bench.scheduler.add(Submit(request_id, (1,) * 5, resolved(1)))
        while bench.scheduler.has_work and request_id == 0:
            bench.engine.step()
    bench.scheduler.add(Submit(2, (1,) * 5, resolved(1)))
    assert bench.scheduler.abort(2)[0].num_cached_tokens == 0
    bench.scheduler.schedule()
    assert bench.scheduler.abort(1)[0].num_cached_tokens == 4


def test_a_second_abort_and_one_of_an_unknown_id_give_nothing() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,), resolved()))
    bench.scheduler.schedule()
    assert len(bench.scheduler.abort(0)) == 1
    assert bench.scheduler.abort(0) == []
    assert bench.scheduler.abort(77) == []


def test_an_aborted_request_keeps_its_pages_until_its_row_is_committed() -> None:
    """Or the next step would be given pages that the device is still writing."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 6, resolved()))
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.abort(0)
    assert bench.scheduler.state.kv.available == 13
    assert bench.scheduler.commit(plan, BatchResult(0, ((1,),))) == []
    assert bench.scheduler.state.kv.available == 16


def test_the_cached_prefix_counts_the_prompt_only() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 7, resolved(1)))
    run(bench)
    bench.scheduler.add(Submit(1, (1,) * 7, resolved(3)))
    outputs = run(bench)
    assert [output.num_cached_tokens for output in outputs] == [6, 6, 6]


def test_a_preempted_request_does_not_count_its_own_pages_as_cached() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 7, resolved(3)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.commit(plan, bench.engine.runner.launch(plan).wait())
    bench.scheduler.state.preempt(bench.scheduler.state.requests[0])
    assert {output.num_cached_tokens for output in run(bench)} == {0}
    assert bench.scheduler.state.requests == {}


def run(bench: Bench) -> list:
    outputs = []
    while bench.scheduler.has_work:
        plan = bench.scheduler.schedule()
        assert plan is not None
        outputs += bench.scheduler.commit(plan, bench.engine.runner.launch(plan).wait())
    return outputs


def test_a_failed_row_ends_its_request_alone() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 3, resolved()))
    bench.scheduler.add(Submit(1, (0,) * 3, resolved()))
    plan = bench.scheduler.schedule()
    assert plan is not None
    outputs = bench.scheduler.commit(plan, BatchResult(0, ((), (1,)), (RowError(0, "NaN logits"),)))
    assert [(o.request_id, o.finish_reason, o.error) for o in outputs] == [
        (0, FinishReason.ERROR, "NaN logits"),
        (1, None, None),
    ]


def test_a_failed_chunk_in_the_middle_of_a_prompt_publishes_nothing() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 12, resolved()))
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.commit(plan, BatchResult(0, (), (RowError(0, "bad"),)))
    assert bench.scheduler.state.kv.tree.num_pages == 0
    assert bench.scheduler.state.kv.pool.num_free == 16


def test_a_failed_row_takes_its_earlier_pages_out_of_the_cache() -> None:
    """They may hold the NaNs that made it fail, and would poison every later request with the same beginning."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 12, resolved()))
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.commit(plan, BatchResult(0, ()))
    assert bench.scheduler.state.kv.tree.num_pages == 4
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.commit(plan, BatchResult(1, ((),), (RowError(0, "NaN logits"),)))
    assert bench.scheduler.state.kv.tree.num_pages == 0
    quiet_means_empty(bench.scheduler.state)


def test_a_lost_device_leaves_nothing_cached() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 7, resolved(3)))
    run(bench)
    assert bench.scheduler.state.kv.tree.num_pages > 0
    bench.scheduler.forget_device()
    assert bench.scheduler.state.kv.tree.num_pages == 0


def test_a_chunk_in_flight_is_not_shared_yet() -> None:
    """It may still fail; a request that had found its pages would read what was never written."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 20, resolved()))
    first, second = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert first is not None
    assert second is not None
    bench.scheduler.commit(first, BatchResult(0, ()))
    assert bench.scheduler.state.kv.tree.num_pages == 4
    bench.scheduler.commit(second, BatchResult(1, ()))
    assert bench.scheduler.state.kv.tree.num_pages == 8


def test_a_request_is_the_first_sample_of_its_prompt_by_default() -> None:
    bench = bench_of()
    bench.scheduler.scheduler.add(Submit(0, (1,), resolved()))
    bench.scheduler.scheduler.add(Submit(1, (1,), resolved(), sample_index=3))
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert [new.sample_index for new in plan.new_slots] == [0, 3]


def test_several_tokens_of_one_row_end_where_the_request_ends() -> None:
    """Speculation may give more than is wanted: a stop token or max_tokens cuts the rest off."""
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 3, resolved(3)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    (output,) = bench.scheduler.commit(plan, BatchResult(0, ((5, 6, 7, 8),)))
    assert output.token_ids == (5, 6, 7)
    assert output.finish_reason is FinishReason.LENGTH


class AllAtOnce:
    """A runner whose rows bring all tokens that are left of their requests."""

    def __init__(self, inner: Runner, sent: Mapping[int, Submit]) -> None:
        self.inner, self.sent = inner, sent

    def launch(self, plan: BatchPlan) -> AllAtOnce:
        self.plan = plan
        return self

    def wait(self) -> BatchResult:
        result = self.inner.launch(self.plan).wait()
        rows = [self.sent[chunk.request_id] for chunk in self.plan.chunks if chunk.samples]
        tokens = tuple(
            oracle(submit.prompt, submit.sampling, sample_index=submit.sample_index, vocab_size=VOCAB)
            for submit in rows
        )
        return replace(result, token_ids=tokens)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("stop", [(), (1,)])
def test_a_row_may_bring_several_tokens(stop: tuple[int, ...]) -> None:
    """Under every law, the fourth among them: what a row brought is known, and what it computed is its inputs."""
    sent = {i: Submit(i, (i % 2,) * 12, resolved(5, seed=i, stop_token_ids=stop)) for i in range(3)}
    world = World(limits_of(chunk=8, running=2), num_pages=32, page_size=2)
    bench = Bench.of(world, AllAtOnce(world.shadow(), sent))
    bench.link.put(*sent.values())
    bench.drain(30)
    check_ends(bench, sent)


def test_a_failed_step_ends_its_requests_and_spares_the_waiting() -> None:
    bench = Bench.of(World(limits_of(chunk=8, running=1), num_pages=16, page_size=2))
    for request_id in (0, 1):
        bench.scheduler.add(Submit(request_id, (1,) * 3, resolved(2)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    (output,) = bench.scheduler.fail(plan, "out of memory")
    assert (output.request_id, output.error) == (0, "out of memory")
    assert [o.request_id for o in run(bench)] == [1, 1]
    quiet_means_empty(bench.scheduler.state)


def test_a_result_for_another_step_is_a_bug_of_the_runner() -> None:
    bench = bench_of()
    bench.scheduler.add(Submit(0, (1,) * 3, resolved(3)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    with pytest.raises(AssertionError, match="result of step 3 for plan 0"):
        bench.scheduler.scheduler.commit(plan, BatchResult(3, ((5,),)))


def test_faults_in_between_leave_the_others_alone() -> None:
    world = World(limits_of(chunk=8, running=2), num_pages=16, page_size=2, depth=2, late=True)
    bench = Bench.of(world, FaultyRunner(world.shadow(), Faults(launch_raises=frozenset({1}))))
    bench.scheduler.add(Submit(0, (1,) * 3, resolved(2)))
    bench.drain(30)
    assert bench.link.end(0).error == "the step failed: InjectedFault: launch 1"
    assert len(bench.link.tokens(0)) == 1, "the step in flight before the failed launch is committed first"


def test_a_request_that_needs_its_last_token_is_planned_every_other_step() -> None:
    """Its neighbours keep their overlap, and nothing of the answers changes."""
    world = World(limits_of(chunk=8, running=2, lookahead=1), num_pages=16, page_size=2, depth=2, late=True)
    runner = RecordingRunner(world.shadow())
    bench = Bench.of(world, runner)
    sent = {0: Submit(0, (1, 0, 1), resolved(6)), 1: Submit(1, (0, 0, 1), resolved(6), lookahead=0)}
    bench.link.put(*sent.values())
    bench.drain(30)
    check_ends(bench, sent)
    planned = [[chunk.request_id for chunk in plan.chunks] for plan in runner.plans]
    assert planned == [[0, 1], [0], [0, 1], [0], [0, 1], [0], [1], [1], [1]]


@pytest.mark.parametrize(("own", "allowed"), [(None, 1), (0, 0), (1, 1), (5, 1)])
def test_no_request_looks_further_ahead_than_the_scheduler(own: int | None, allowed: int) -> None:
    """The device keeps one token of each slot for a depth of two: a request may not ask for more."""
    bench = Bench.of(World(limits_of(chunk=8, lookahead=1), num_pages=16, page_size=2, depth=2))
    bench.scheduler.add(Submit(0, (1,), resolved(), lookahead=own))
    assert bench.scheduler.state.requests[0].lookahead == allowed


def test_a_lookahead_that_could_never_be_met_is_refused() -> None:
    """It would wait for ever."""
    with pytest.raises(ValueError, match="lookahead must be at least 0, got -1"):
        bench_of().scheduler.scheduler.add(Submit(0, (1,), resolved(), lookahead=-1))
