"""Which rows have drafts, how many, and what the others lose by it: nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from recording import RecordingRunner
from sluice.engine.messages import Submit
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.cost import CostPrior, StepLoad
from sluice.scheduler.pacer import Pacer, Pacing
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.request import Request
from sluice.testing import resolved
from sluice.types import BatchPlan, BatchResult, Regime, TierLimits
from support import queue, steps_of
from worlds import Bench, World, limits_of, offload_of


def bench_of(
    *, pages: int = 40, page_size: int = 4, depth: int = 1, right: float = 1.0, drafts: int = 4, **rest: object
) -> Bench:
    limits = limits_of(**{"batch": 64, "num_draft_tokens": drafts, **rest})
    return Bench.of(World(limits, pages, page_size, depth=depth, drafts_right=right, drafts_eager=True))


def played(bench: Bench, turns: int, arrivals: Mapping[int, Submit] | None = None) -> list[BatchPlan]:
    """The plans of so many turns of the loop, before some of which requests arrive."""
    bench.engine.runner = runner = RecordingRunner(bench.engine.runner)
    for turn in range(turns):
        bench.link.put(*[submit for at, submit in (arrivals or {}).items() if at == turn])
        bench.engine.step()
    return runner.plans


def drafts_of(plan: BatchPlan) -> dict[int, int]:
    """Drafts by request, 0 for those without."""
    return {chunk.request_id: chunk.num_drafts for chunk in plan.chunks}


def test_a_row_brings_its_accepted_drafts_and_one_token_more() -> None:
    bench = bench_of()
    queue(bench, 0, 3, max_tokens=20)
    steps = [drafts_of(plan) for plan in steps_of(bench, 10)]
    assert steps == [{0: 0}, {0: 4}, {0: 4}, {0: 4}, {0: 3}]  # 1 + 5 + 5 + 5 + 4 tokens
    assert [(out.num_drafted, out.num_accepted) for out in bench.link.outputs] == [
        (0, 0),
        (4, 4),
        (4, 4),
        (4, 4),
        (3, 3),
    ]


def test_no_draft_is_beyond_the_last_token() -> None:
    """The row of the last draft brings one token more."""
    bench = bench_of()
    queue(bench, 0, 3, max_tokens=4)
    assert [drafts_of(plan) for plan in steps_of(bench, 10)] == [{0: 0}, {0: 2}]
    bench = bench_of()
    queue(bench, 0, 3, max_tokens=2)
    assert [drafts_of(plan) for plan in steps_of(bench, 10)] == [{0: 0}, {0: 0}]


def test_rows_with_drafts_follow_the_others() -> None:
    """Rows of one token stay together at the front, where kernels of decodes take them."""
    bench = bench_of(batch=9, running=3)
    for request_id, max_tokens in enumerate((20, 2, 20)):
        queue(bench, request_id, 1, max_tokens)
    steps_of(bench)
    (plan,) = steps_of(bench)
    assert plan.num_decodes == 3
    assert [(chunk.request_id, chunk.num_drafts) for chunk in plan.chunks] == [(1, 0), (0, 4), (2, 2)]


def test_a_request_with_drafts_waits_for_its_tokens_and_its_neighbour_does_not() -> None:
    """Of two steps in flight, the one in which a row has drafts is followed by one without that request."""
    bench = bench_of(depth=2, lookahead=1, running=2)
    bench.link.put(Submit(0, (1, 2, 3), resolved(40)), Submit(1, (3, 2), resolved(40)))
    drafter = bench.scheduler.state.drafter
    drafter.wants = lambda request: request.id == 0
    shapes = [drafts_of(plan) for plan in played(bench, 12)]
    assert shapes == [{0: 0, 1: 0}, {1: 0}, *[{0: 4, 1: 0}, {1: 0}] * 5]


def test_requests_with_drafts_run_in_the_same_steps() -> None:
    """In steps that alternate, each would read all weights for half of them."""
    bench = bench_of(depth=2, lookahead=1, running=3, drafts=2)
    arrivals = {step: Submit(step, (step, 2, 3), resolved(40)) for step in (0, 3, 4)}
    shapes = [drafts_of(plan) for plan in played(bench, 16, arrivals)]
    assert shapes[:4] == [{0: 0}, {0: 2}, {3: 0}, {0: 2, 4: 0}]
    assert shapes[4:] == [{0: 2, 3: 2, 4: 2}] * len(shapes[4:])


def test_drafts_have_what_prompts_leave_of_a_chunk() -> None:
    """Drafts beside whole chunks made the steps longer that streams wait for longest anyway."""
    bench = bench_of(chunk=8, batch=12, running=2)
    queue(bench, 0, 1, max_tokens=30)
    steps_of(bench)
    queue(bench, 1, 30)
    steps = [[(chunk.length, chunk.num_drafts) for chunk in plan.chunks] for plan in steps_of(bench, 4)]
    assert steps == [[(1, 0), (8, 0)]] * 3 + [[(3, 2), (6, 0)]]


def test_drafts_are_not_beside_prompts_that_are_never_cut() -> None:
    bench = bench_of(chunk=0, batch=60, running=2)
    queue(bench, 0, 1, max_tokens=30)
    steps_of(bench)
    queue(bench, 1, 30)
    assert [drafts_of(plan) for plan in steps_of(bench, 2)] == [{0: 0, 1: 0}, {0: 4, 1: 4}]


def test_overlap_goes_on_beside_prompts() -> None:
    """A request was left out of every other step, to have drafts for which there was no room."""
    bench = bench_of(depth=2, lookahead=1, chunk=8, running=2, pages=100)
    arrivals = {0: Submit(0, (1, 2, 3), resolved(60)), 4: Submit(1, (3,) * 80, resolved(2))}
    plans = [drafts_of(plan) for plan in played(bench, 20, arrivals)]
    assert [plan for plan in plans if 1 in plan][1:9] == [{0: 0, 1: 0}] * 8
    assert plans[-1] == {0: 4}


def test_drafts_come_off_no_budget_of_prompts() -> None:
    """`max_prefill_tokens` counts the decodes, and what they guess beside them is neither."""
    bench = bench_of(chunk=8, max_prefill_tokens=9, running=2, itl_target=10_000_000)
    queue(bench, 0, 1, max_tokens=30)
    steps_of(bench)
    queue(bench, 1, 30)
    (plan,) = steps_of(bench)
    assert [(chunk.length, chunk.num_drafts) for chunk in plan.chunks] == [(5, 4), (8, 0)]


@pytest.mark.parametrize(("schedule", "chunk"), [("mixed", 8), ("mixed", 0), ("prefill-first", 8)])
def test_what_waits_for_memory_keeps_no_stream_from_drafts(schedule: str, chunk: int) -> None:
    """Streams had none for as long as a prompt waited that could not begin."""
    bench = bench_of(schedule=schedule, chunk=chunk, pages=12, batch=40, running=2, reserve="full")
    queue(bench, 0, 1, max_tokens=30)
    steps_of(bench)
    queue(bench, 1, 30)
    (plan,) = steps_of(bench)
    assert drafts_of(plan) == {0: 4}


@pytest.mark.parametrize("status", ["forced", "loading", "offloaded"])
def test_before_prompts_drafts_leave_them_their_chunk(status: str) -> None:
    """With a target drafts are planned first. Prompts may be tokens that a grammar forced, a prefix that comes from a
    tier, and contexts longer than the device."""
    bench = bench_of(chunk=8, batch=12, running=2, itl_target=10_000_000)
    queue(bench, 0, 1, max_tokens=30)
    steps_of(bench)
    state, limits = bench.scheduler.state, bench.scheduler.scheduler.limits
    assert PrefillAdder(state, limits, BatchBuilder()).room_for_drafts() == 12
    getattr(state, status)[1] = Request(Submit(1, (1,), resolved(9)))
    assert PrefillAdder(state, limits, BatchBuilder()).room_for_drafts() == 4


def test_a_full_house_has_drafts() -> None:
    """Prompts that wait for a slot want nothing of the step."""
    bench = bench_of(chunk=8, batch=9, running=1)
    queue(bench, 0, 1, max_tokens=30)
    queue(bench, 1, 30)
    steps_of(bench)
    assert [drafts_of(plan) for plan in steps_of(bench)] == [{0: 4}]


def test_drafts_are_part_of_the_load_of_their_step() -> None:
    """The target, and what a simulation takes for the step, are kept by what it has to do."""
    request = Request(Submit(0, (1, 2, 3), resolved(9)))
    request.lease, request.slot = World(limits_of(), 10, 4).kv().acquire((), ""), 0
    batch = BatchBuilder()
    batch.promise(request, 3)
    request.tokens.append(4)
    request.pending, request.prefill_end = 0, 3
    batch = BatchBuilder()
    batch.promise(request, 1)
    pacer = Pacer(limits_of(itl_target=5000), 4, Pacing(graph_rows=8))
    assert batch.load == batch.decodes == StepLoad(1, 1, 4)
    assert pacer.regime(batch, has_prefill=False) is Regime.GRAPH
    batch.add_drafts({0: (5, 6)}, {0: request}, in_runner=False)
    assert batch.load == batch.decodes == StepLoad(3, 1, 6)
    assert pacer.regime(batch, has_prefill=False) is Regime.DECODE  # no graph has their shape


def test_drafts_leave_prompts_half_of_the_time_to_the_target() -> None:
    limits = limits_of(chunk=64, itl_target=40_000)
    pacer = Pacer(limits, 4, Pacing(prior=CostPrior(step=1000, token=1000, pair=1e-9)))
    budget = pacer.budget(BatchBuilder(), limits, [Request(Submit(0, (1,), resolved(9)))])
    alone, beside = (budget.room_for_drafts(beside_prompts=each) for each in (False, True))
    assert 20 < alone < 40
    assert alone // 2 == beside


def test_nothing_follows_a_row_with_drafts_even_if_none_are_wanted_any_more() -> None:
    """Where its next row begins is not known."""
    bench = bench_of(depth=2, lookahead=1, running=1)
    bench.link.put(Submit(0, (1, 2, 3), resolved(40)))
    assert [drafts_of(plan) for plan in played(bench, 3)] == [{0: 0}, {0: 4}]
    bench.scheduler.state.drafter.wants = lambda request: False
    assert [drafts_of(plan) for plan in played(bench, 4)] == [{0: 0}, {0: 0}, {0: 0}]


def test_in_a_pipeline_rows_with_drafts_are_in_several_steps() -> None:
    """Requests are divided among the steps anyway, and a stage that waits for all of them would stand still."""
    bench = bench_of(depth=3, running=2, pipeline_stages=2)
    bench.link.put(Submit(0, (1, 2, 3), resolved(40)), Submit(1, (2, 3), resolved(40)))
    assert [drafts_of(plan) for plan in played(bench, 8)][-4:] == [{0: 4}, {1: 4}, {0: 4}, {1: 4}]
    assert len(bench.engine.in_flight) == 2


def test_drafts_keep_to_the_target() -> None:
    """Of steps that take a millisecond for each token, as has been seen, none has more than four."""
    bench = bench_of(pages=200, chunk=32, itl_target=5000, drafts=8)
    queue(bench, 0, 1, max_tokens=400)
    scheduler, runner = bench.scheduler, bench.engine.runner
    lengths: list[int] = []
    for _ in range(60):
        plan = scheduler.schedule()
        lengths.append(plan.num_tokens)
        scheduler.commit(plan, runner.launch(plan).wait(), 100 + 1000 * plan.num_tokens)
    assert max(lengths[:10]) > 5
    assert 2 <= max(lengths[-20:]) <= 5


@pytest.mark.parametrize(
    ("pages", "drafts"), [(2, [1, 1]), (4, [1, 1]), (5, [3, 1]), (6, [4, 1]), (7, [4, 3]), (8, [4, 4])]
)
def test_drafts_take_no_page_that_a_stream_needs(pages: int, drafts: list[int]) -> None:
    """Both streams need a page for their next tokens, which leave room for one more, and keep one for those behind."""
    bench = bench_of(page_size=2, running=2)
    for request_id in (0, 1):
        queue(bench, request_id, 4, max_tokens=8)
    steps_of(bench)
    kv = bench.scheduler.state.kv
    kv.take(kv.available - pages)
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert [chunk.num_drafts for chunk in plan.chunks] == drafts


@pytest.mark.parametrize("right", [0.0, 0.5])
def test_pages_of_rejected_drafts_go_back_at_once(right: float) -> None:
    bench = bench_of(page_size=2, right=right, drafts=8, running=1)
    queue(bench, 0, 3, max_tokens=30)
    state = bench.scheduler.state
    given_back = 0
    for _ in range(8):
        plan = bench.scheduler.schedule()
        held = state.kv.num_pages - state.kv.available
        bench.scheduler.commit(plan, bench.engine.runner.launch(plan).wait())
        request = state.requests[0]
        assert len(request.lease.pages) == state.kv.pages_for(request.computed + 1) or not plan.chunks[0].num_drafts
        given_back += len(request.lease.pages) < held
    assert given_back > 3


def test_what_was_rejected_is_never_found_in_the_cache() -> None:
    """Every page in the tree is of tokens that were prompted or answered."""
    bench = bench_of(page_size=1, right=0.0, drafts=4, running=1)
    queue(bench, 0, 3, max_tokens=2 + 4, token=1)
    drafted: list[tuple[int, ...]] = []
    while bench.scheduler.has_work:
        drafted += [(*chunk.token_ids,) for plan in steps_of(bench) for chunk in plan.chunks if chunk.num_drafts]
    state = bench.scheduler.state
    known = (1, 1, 1, *bench.link.tokens(0))
    paths = {tuple(known[:end]) for end in range(1, len(known))}
    for node in state.kv.tree.nodes():
        tokens: list[int] = []
        while node.parent is not None:
            tokens.insert(0, int.from_bytes(node.key, "little"))
            node = node.parent
        assert tuple(tokens) in paths
    assert drafted


@pytest.mark.parametrize(("costs", "drafts"), [({"load_cost": 5.0}, 4), ({"pair_cost": 1.0}, 1)])
def test_an_offloaded_row_has_drafts_that_at_most_double_its_cost(costs: dict[str, float], drafts: int) -> None:
    """Where its context takes long to read, guesses cost little beside."""
    limits = limits_of(chunk=8, batch=64, num_draft_tokens=4)
    world = World(limits, 8, 4, tiers=TierLimits(disk_pages=40), offload=offload_of(**costs), drafts_eager=True)
    bench = Bench.of(replace(world, drafts_right=1.0))
    queue(bench, 0, 60, max_tokens=10)
    bench.engine.runner = runner = RecordingRunner(bench.engine.runner)
    bench.drain(500)
    decodes = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.start >= 60]
    assert decodes[0].num_drafts == drafts
    assert [chunk.known_end for chunk in decodes[:2]] == [61, 61 + drafts + 1]


def test_nothing_waits_for_requests_that_want_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that wants drafts waited as long as two that want none were planned in turns."""
    bench = bench_of(depth=2, lookahead=1, running=3, pages=400)
    monkeypatch.setattr(bench.scheduler.state.drafter, "wants", lambda request: request.id == 2)
    arrivals = {
        0: Submit(0, (1, 2, 3), resolved(200), lookahead=0),
        1: Submit(1, (3, 2), resolved(200), lookahead=0),
        6: Submit(2, (5, 5), resolved(50)),
    }
    rows = [chunk.request_id for plan in played(bench, 60, arrivals) for chunk in plan.chunks]
    assert rows.count(2) > 10


def test_drafts_behind_a_stop_token_do_not_count() -> None:
    """Usage said that more guesses were tokens of the answer than it has tokens."""
    bench = bench_of(pages=400)
    bench.scheduler.add(Submit(0, (0, 1, 0), replace(resolved(50), stop_token_ids=(1,))))
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.commit(plan, BatchResult(plan.step, ((0,),)))
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert plan.chunks[0].num_drafts == 4
    (output,) = bench.scheduler.commit(plan, BatchResult(plan.step, ((0, 1, 0, 0, 0),), accepted=(4,)))
    assert (output.token_ids, output.num_accepted) == ((0, 1), 2)
