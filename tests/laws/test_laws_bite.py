"""Every law notices the damage it is there for. A law that cannot fail protects nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.engine.messages import Submit
from sluice.scheduler.request import Status
from sluice.scheduler.state import SchedulerState
from sluice.testing import laws, resolved
from sluice.testing.laws import LawBroken, View
from sluice.types import BatchPlan, FinishReason, Output, TokenLogprobs
from worlds import Bench, World, limits_of


def midway() -> Bench:
    """Two requests decode, a third is half prefilled, a fourth waits; pages are cached; nothing is in flight."""
    bench = Bench.of(World(limits_of(chunk=4, running=3), num_pages=20, page_size=2))
    for request_id, length in enumerate([3, 4, 20, 2]):
        bench.link.put(Submit(request_id, tuple([request_id % 2] * length), resolved(6)))
    for _ in range(4):
        bench.engine.step()
    state = bench.scheduler.state
    assert (len(state.decoding), len(state.partial), len(state.waiting)) == (2, 1, 1)
    assert state.kv.tree.num_pages > 0
    return bench


def free_a_held_page(state: SchedulerState) -> None:
    state.kv.pool.give([state.decoding[0].lease.pages[-1]])


def lose_a_page(state: SchedulerState) -> None:
    state.kv.pool.take(1)


def count_a_reference_too_many(state: SchedulerState) -> None:
    next(iter(state.kv.tree.nodes())).refs += 1


def hold_a_child_without_its_parent(state: SchedulerState) -> None:
    node = next(node for node in state.kv.tree.nodes() if node.children)
    next(iter(node.children.values())).refs += 5


def miscount_what_is_evictable(state: SchedulerState) -> None:
    state.kv.tree._num_held -= 1


def forget_to_offer_a_leaf(state: SchedulerState) -> None:
    for request in state.decoding.values():
        state.kv.tree.unlock(request.lease.path)
        request.lease.path.clear()
    assert len(state.kv.tree._leaves) == 2
    state.kv.tree._leaves.pop()


def link_a_node_wrongly(state: SchedulerState) -> None:
    node = next(iter(state.kv.tree.nodes()))
    node.key += b"x"  # nodes() still walks to it


def evict_without_unlinking(state: SchedulerState) -> None:
    next(iter(state.kv.tree.nodes())).page = -1


def miscount_the_tree(state: SchedulerState) -> None:
    state.kv.tree._num_pages += 1
    state.kv.tree._num_held += 1


def compute_more_than_scheduled(state: SchedulerState) -> None:
    state.decoding[0].computed = state.decoding[0].scheduled + 1


def compute_the_last_token(state: SchedulerState) -> None:
    """As if a row had committed a token that it checked and that was rejected."""
    request = state.decoding[0]
    request.computed = request.scheduled = len(request.tokens)


def expect_a_sample_from_no_row(state: SchedulerState) -> None:
    state.decoding[0].pending = 1


def schedule_more_than_there_is(state: SchedulerState) -> None:
    request = state.partial[2]
    request.scheduled = request.computed = len(request.tokens) + 1


def generate_too_much(state: SchedulerState) -> None:
    request = state.decoding[0]
    request.tokens.extend([0] * 10)


def tell_more_than_was_asked(state: SchedulerState) -> None:
    state.decoding[0].prompt_logprobs_sent = 1


def take_tokens_with_targets_from_the_cache(state: SchedulerState) -> None:
    request = state.partial[2]
    request.num_targets, request.prompt_logprobs_sent = 19, request.computed - 1


def leave_a_gap_in_a_decode(state: SchedulerState) -> None:
    state.decoding[0].tokens.extend([0])


def wait_with_a_promise(state: SchedulerState) -> None:
    next(iter(state.waiting)).scheduled = 1


def wait_with_a_slot(state: SchedulerState) -> None:
    next(iter(state.waiting)).slot = 0


def hold_a_page_too_many(state: SchedulerState) -> None:
    state.decoding[0].lease.pages += state.kv.pool.take(1)


def read_another_page_than_published(state: SchedulerState) -> None:
    lease = next(r.lease for r in state.decoding.values() if r.lease.path)
    lease.pages[0] = lease.pages[-1]


def publish_what_is_not_computed(state: SchedulerState) -> None:
    request = next(r for r in state.decoding.values() if r.lease.path)
    request.computed = request.cached = 0


def be_in_two_places(state: SchedulerState) -> None:
    state.partial[0] = state.decoding[0]


def report_the_wrong_status(state: SchedulerState) -> None:
    state.decoding[0].status = Status.PARTIAL


def wait_under_a_wrong_name(state: SchedulerState) -> None:
    next(iter(state.waiting)).status = Status.GONE


def be_nowhere(state: SchedulerState) -> None:
    state.waiting.remove(next(iter(state.waiting)))


def keep_followers_waiting_without_a_leader(state: SchedulerState) -> None:
    state.computing[0] = state.decoding[0]


def drain_with_nothing_in_flight(state: SchedulerState) -> None:
    request = state.decoding.pop(0)
    request.status = Status.DRAINING
    state.draining[0] = request


def lose_a_slot(state: SchedulerState) -> None:
    state.num_slots += 1


def run_without_pages(state: SchedulerState) -> None:
    state.decoding[0].lease = None


def hold_another_kind_of_lease(state: SchedulerState) -> None:
    request = state.decoding.pop(0)
    request.status = Status.OFFLOADED
    state.offloaded[0] = request


DAMAGE = [
    (1, free_a_held_page),
    (1, lose_a_page),
    (1, run_without_pages),
    (1, lose_a_slot),
    (2, count_a_reference_too_many),
    (2, hold_a_child_without_its_parent),
    (2, miscount_what_is_evictable),
    (3, forget_to_offer_a_leaf),
    (3, link_a_node_wrongly),
    (3, evict_without_unlinking),
    (3, miscount_the_tree),
    (4, compute_more_than_scheduled),
    (4, compute_the_last_token),
    (4, expect_a_sample_from_no_row),
    (4, schedule_more_than_there_is),
    (4, generate_too_much),
    (4, leave_a_gap_in_a_decode),
    (4, tell_more_than_was_asked),
    (4, take_tokens_with_targets_from_the_cache),
    (4, wait_with_a_promise),
    (4, wait_with_a_slot),
    (5, hold_a_page_too_many),
    (5, read_another_page_than_published),
    (5, publish_what_is_not_computed),
    (6, be_in_two_places),
    (6, report_the_wrong_status),
    (6, wait_under_a_wrong_name),
    (6, be_nowhere),
    (6, drain_with_nothing_in_flight),
    (6, keep_followers_waiting_without_a_leader),
    (6, hold_another_kind_of_lease),
]


def broken_laws(state: SchedulerState) -> set[int]:
    """The numbers of the laws that do not hold, each asked on its own."""
    checks: list[Callable[[], None]] = [
        lambda: laws.pages_are_conserved(View(state)),
        lambda: laws.references_are_counted(View(state)),
        lambda: laws.tree_is_reachable(View(state)),
        *(lambda r=request: laws.counters_are_ordered(r) for request in state.requests.values()),
        *(lambda r=r, held=held: laws.pages_cover_the_promise(state.kv, r, held) for r, held in View(state).resident),
        lambda: laws.requests_have_one_status(state),
        lambda: laws.slots_are_conserved(View(state)),
    ]
    broken = set()
    for check in checks:
        try:
            check()
        except LawBroken as error:
            broken.add(int(str(error).removeprefix("law ")[0]))
        except (AssertionError, AttributeError):
            pass
    return broken


@pytest.mark.parametrize(("number", "damage"), DAMAGE, ids=[damage.__name__ for _, damage in DAMAGE])
def test_a_damaged_state_breaks_its_law(number: int, damage: Callable[[SchedulerState], None]) -> None:
    state = midway().scheduler.state
    assert broken_laws(state) == set()
    damage(state)
    assert number in broken_laws(state)
    with pytest.raises((LawBroken, AttributeError)):
        laws.check_state(state)


def planned() -> tuple[Bench, BatchPlan]:
    bench = midway()
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert [chunk.length for chunk in plan.chunks] == [1, 1, 4]
    laws.check_plan(bench.scheduler.state, bench.scheduler.scheduler.limits, plan)
    return bench, plan


def test_the_wrong_targets_break_law_8() -> None:
    """One too many, one too few, none; and any if the row asks for none."""
    bench, plan = planned()
    state, limits = bench.scheduler.state, bench.scheduler.scheduler.limits
    with pytest.raises(LawBroken, match="law 8"):
        laws.check_plan(state, limits, with_chunk(plan, 2, targets=(0, 0, 0, 0)))
    state.partial[2].num_targets, state.partial[2].prompt_logprobs_sent = 19, plan.chunks[2].start
    laws.check_plan(state, limits, with_chunk(plan, 2, targets=(0, 0, 0, 0)))
    for count in (0, 3, 5):
        with pytest.raises(LawBroken, match="law 8"):
            laws.check_plan(state, limits, with_chunk(plan, 2, targets=(0,) * count))


def with_chunk(plan: BatchPlan, row: int, **changes: object) -> BatchPlan:
    chunks = list(plan.chunks)
    chunks[row] = chunks[row]._replace(**changes)
    return replace(plan, chunks=tuple(chunks))


BAD_PLANS: dict[str, tuple[int, Callable[[BatchPlan], BatchPlan]]] = {
    "nothing in it": (7, lambda plan: replace(plan, chunks=())),
    "a prefill behind no decode": (8, lambda plan: replace(plan, chunks=plan.chunks[::-1])),
    "two rows of one request": (8, lambda plan: replace(plan, chunks=(plan.chunks[0], *plan.chunks))),
    "an empty chunk": (8, lambda plan: with_chunk(plan, 2, length=0)),
    "the wrong slot": (8, lambda plan: with_chunk(plan, 0, slot=7)),
    "tokens missing": (8, lambda plan: with_chunk(plan, 2, token_ids=())),
    "a token that no row samples": (8, lambda plan: with_chunk(plan, 0, token_ids=())),
    "sampling in the middle": (8, lambda plan: with_chunk(plan, 2, samples=True)),
    "not sampling at the end": (8, lambda plan: with_chunk(plan, 0, samples=False)),
    "a cut inside a page": (8, lambda plan: with_chunk(plan, 2, length=3, token_ids=plan.chunks[2].token_ids[:3])),
}


@pytest.mark.parametrize(("number", "spoil"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_breaks_its_law(number: int, spoil: Callable[[BatchPlan], BatchPlan]) -> None:
    bench, plan = planned()
    with pytest.raises(LawBroken, match=f"law {number}"):
        laws.check_plan(bench.scheduler.state, bench.scheduler.scheduler.limits, spoil(plan))


@pytest.mark.parametrize(
    "limits",
    [
        limits_of(chunk=4, batch=5, running=3),
        limits_of(chunk=3, batch=9, running=3),
        limits_of(schedule="prefill-first", chunk=4, running=3),
    ],
    ids=["tokens of the batch", "tokens of prefill", "prefill and decode apart"],
)
def test_a_budget_overrun_breaks_law_7(limits: object) -> None:
    """Only the end of a prompt may exceed the chunk size, and here its middle does."""
    bench, plan = planned()
    with pytest.raises(LawBroken, match="law 7"):
        laws.check_plan(bench.scheduler.state, limits, plan)


@pytest.mark.parametrize(("chunk", "holds"), [(10, True), (8, True), (7, False), (2, False)])
def test_an_end_that_exceeds_the_chunk_size_by_more_than_a_page_breaks_law_7(chunk: int, *, holds: bool) -> None:
    """A page has two tokens; the prompt of ten ends in one chunk."""
    bench = Bench.of(World(limits_of(chunk=10), num_pages=20, page_size=2))
    bench.link.put(Submit(0, (1,) * 10, resolved(1)))
    bench.engine._receive()
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    limits = limits_of(chunk=chunk, batch=20)
    if holds:
        laws.check_plan(bench.scheduler.state, limits, plan)
    else:
        with pytest.raises(LawBroken, match="law 7"):
            laws.check_plan(bench.scheduler.state, limits, plan)


def test_an_unused_budget_breaks_law_17() -> None:
    """A half-computed prompt gets half of the step, and no other prompt takes the rest."""
    bench, plan = planned()
    state, limits = bench.scheduler.state, bench.scheduler.scheduler.limits
    laws.no_budget_is_unused(state, limits, plan)
    state.partial[2].scheduled -= 2
    plan = with_chunk(plan, 2, length=2, token_ids=plan.chunks[2].token_ids[:2])
    with pytest.raises(LawBroken, match=r"law 17: plan \d+ leaves 2 tokens unused, request 2 lacks"):
        laws.no_budget_is_unused(state, limits, plan)
    laws.no_budget_is_unused(state, limits_of(chunk=4, batch=5, running=3), plan)


def test_running_further_ahead_than_allowed_breaks_law_8() -> None:
    bench, plan = planned()
    bench.scheduler.state.decoding[0].pending += 1
    with pytest.raises(LawBroken, match="law 8"):
        laws.check_plan(bench.scheduler.state, bench.scheduler.scheduler.limits, plan)


def test_two_rows_writing_one_page_break_law_9() -> None:
    bench, plan = planned()
    state = bench.scheduler.state
    state.decoding[1].lease.pages[-1] = state.partial[2].lease.pages[-1]
    state.decoding[1].scheduled = state.partial[2].scheduled
    plan = with_chunk(plan, 1, start=state.partial[2].scheduled - 1)
    with pytest.raises(LawBroken, match="law 9"):
        laws.writes_are_private(state, with_chunk(plan, 1, start=len(state.decoding[1].lease.pages) * 2 - 1))


def test_writing_a_published_page_breaks_law_9() -> None:
    bench, plan = planned()
    with pytest.raises(LawBroken, match="law 9"):
        laws.writes_are_private(bench.scheduler.state, with_chunk(plan, 2, start=0))


def test_outputs_after_the_end_or_out_of_order_break_law_11() -> None:
    bench = midway()
    with pytest.raises(LawBroken, match="law 11"):
        bench.scheduler._checked([Output(0, 99, (1,), 0)])
    bench = midway()
    bench.scheduler.abort(0)
    with pytest.raises(LawBroken, match="law 11"):
        bench.scheduler._checked([Output(0, 0, (), 0, FinishReason.ABORT)])


def logprobs_of(*tokens: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token, -1.0, ()) for token in tokens)


@pytest.mark.parametrize(
    "outputs",
    [
        [Output(0, 0, (9,), 0, prompt_logprobs=logprobs_of(6, 7))],
        [Output(0, 0, (9,), 0, logprobs=logprobs_of(8), prompt_logprobs=logprobs_of(6, 7))],
        [Output(0, 0, (9,), 0, logprobs=logprobs_of(9), prompt_logprobs=logprobs_of(6))],
        [Output(0, 0, (), 0, prompt_logprobs=logprobs_of(6)), Output(0, 0, (), 0, prompt_logprobs=logprobs_of(6))],
        [Output(0, 0, (), 0, prompt_logprobs=logprobs_of(6, 7, 8))],
        [Output(1, 0, (9,), 0, logprobs=logprobs_of(9))],
        [Output(1, 0, (), 0, prompt_logprobs=logprobs_of(6))],
    ],
    ids=["none", "another", "prompt late", "prompt twice", "prompt too long", "unasked", "prompt unasked"],
)
def test_wrong_logprobs_break_law_11(outputs: list[Output]) -> None:
    """Of the tokens (5, 6, 7) of a prompt the last two have log-probabilities, then each output; request 1 has none."""
    lawful = World(limits_of(), num_pages=8, page_size=2).scheduler()
    lawful.add(Submit(0, (5, 6, 7), replace(resolved(4), logprobs=0, prompt_logprobs=0)))
    lawful.add(Submit(1, (5, 6, 7), resolved(4)))
    with pytest.raises(LawBroken, match="law 11"):
        lawful._checked(outputs)


def test_a_request_that_is_forgotten_breaks_law_11() -> None:
    bench = midway()
    bench.scheduler.scheduler.abort(3)
    with pytest.raises(LawBroken, match="law 11"):
        bench.scheduler._checked([])


def test_a_page_freed_in_flight_breaks_law_10() -> None:
    bench = midway()
    plan = bench.scheduler.schedule()
    assert plan is not None
    state = bench.scheduler.state
    state.decoding[0].lease.release(state.decoding[0].tokens, 0)
    with pytest.raises(LawBroken, match="law 10"):
        bench.scheduler._nothing_in_flight_is_free()


def test_a_slot_reused_in_flight_breaks_law_10() -> None:
    bench = midway()
    assert bench.scheduler.schedule() is not None
    bench.scheduler.state.decoding[0].slot = 99
    with pytest.raises(LawBroken, match="law 10"):
        bench.scheduler._nothing_in_flight_is_free()


def test_a_plan_that_writes_pages_in_flight_breaks_law_10() -> None:
    bench = midway()
    plan = bench.scheduler.schedule()
    assert plan is not None
    pages = bench.scheduler.in_flight[0][1][0]
    with pytest.raises(LawBroken, match="law 10"):
        bench.scheduler._writes_are_undisturbed(
            with_chunk(plan, 1, start=0, length=2), {chunk.request_id: pages for chunk in plan.chunks}
        )


@pytest.mark.parametrize("change", [-1, 1])
def test_pending_tokens_of_no_row_break_law_4(change: int) -> None:
    """A token that no row in flight brings would be waited for in vain; one too few would be planned twice."""
    bench = midway()
    assert bench.scheduler.schedule() is not None
    bench.scheduler.state.decoding[0].pending += change
    with pytest.raises(LawBroken, match="law 4"):
        bench.scheduler._pending_is_in_flight()


def test_committing_out_of_order_is_noticed() -> None:
    bench = midway()
    first = bench.scheduler.schedule()
    assert first is not None
    with pytest.raises(LawBroken, match="out of order"):
        bench.scheduler.fail(replace(first), "no")


def test_something_left_behind_breaks_law_15() -> None:
    with pytest.raises(LawBroken, match="law 15"):
        laws.quiet_means_empty(midway().scheduler.state)
