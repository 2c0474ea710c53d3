"""Offloaded requests, one behaviour each, over the shadow runner and under the laws."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from recording import RecordingRunner
from slow import slow
from sluice.engine.messages import BlocksLoaded, Submit
from sluice.kv.nodes import Node
from sluice.kv.offload import OffloadLease
from sluice.scheduler.offloading import MOST_LOSSES, awaits_loads
from sluice.scheduler.request import Request
from sluice.testing import ShadowRunner, ShadowTiers, oracle, resolved
from sluice.testing.laws import LawBroken
from sluice.testing.laws.plans import selections_follow_from_positions
from sluice.types import BatchPlan, Bound, ChunkSlice, FinishReason, Tier, TierLimits
from tier_worlds import TierBench
from worlds import VOCAB, Bench, SlowDisk, World, check_ends, enough_steps, limits_of, offload_of

OFFLOAD = offload_of(load_cost=1.0)
WORLD = World(
    limits_of(chunk=8),
    num_pages=8,
    page_size=4,
    tiers=TierLimits(disk_pages=40),
    offload=OFFLOAD,
)


def prompt(length: int, first: int = 0) -> tuple[int, ...]:
    return (first, *(position // 3 % 2 for position in range(1, length)))


def served(world: World, *submits: Submit) -> tuple[Bench, list[BatchPlan]]:
    """An engine that served these, sent at once."""
    runner = RecordingRunner(world.shadow())
    bench = Bench.of(world, runner)
    bench.link.put(*submits)
    bench.drain(enough_steps({submit.request_id: submit for submit in submits}))
    return bench, runner.plans


@pytest.mark.parametrize("group", [32, 28])
def test_a_step_takes_what_its_budget_pays_for(group: int) -> None:
    """A chunk behind a long context is more work than a step may take: done at once, its neighbours would stand still;
    done in smaller parts than need be, it would take longer. The rest of a layer costs four tokens here; alone it may
    cost eight times a step of eight tokens."""
    world = replace(WORLD, offload=replace(OFFLOAD, load_cost=group / 4))
    _, plans = served(world, Submit(0, prompt(60), resolved(3)))
    slices = [part for plan in plans for part in plan.slices]
    last = [part for part in slices if part.chunk.start == 56]
    assert [part.base for part in last] == [last[0].base] * len(last)
    groups = last[0].base // 4
    assert last[0].total == 2 * (groups + 1)
    costs, steps = [*[group] * groups, 4] * 2, [0]
    for cost in costs:
        if steps[-1] + cost > 64:
            steps.append(0)
        steps[-1] += cost
    assert [sum(costs[part.first : part.stop]) for part in last] == steps
    assert [part.first for part in last[1:]] == [part.stop for part in last[:-1]]


def test_a_policy_chooses_for_decodes_alone() -> None:
    """A prompt of some chunks and one token more: its last token alone was taken for a decode, and saw of its own
    prompt what a sparse policy leaves."""
    world = replace(WORLD, offload=replace(OFFLOAD, decode_blocks=1))
    _, plans = served(world, Submit(0, prompt(57), resolved(3)))
    slices = [part for plan in plans for part in plan.slices if part.chunk.length == 1]
    found = {part.chunk.start: (part.is_decode, part.total) for part in slices}
    base = next(part.base for part in slices if part.chunk.start == 56) // 4
    assert base >= 12
    assert found == {56: (False, 2 * (base + 1)), 57: (True, 2 * 2), 58: (True, 2 * 2)}


def test_what_is_computed_again_is_decoded_again_where_a_policy_selects() -> None:
    """As one chunk of a prompt it attended to everything: after the engine had died the stream went on differently."""
    world = replace(WORLD, offload=replace(OFFLOAD, decode_blocks=1, decode_lag=1))
    whole = oracle(prompt(57), resolved(9), vocab_size=VOCAB)
    _, plans = served(world, Submit(0, prompt(57), resolved(9), output_ids=whole[:6], is_resumed=True))
    done = [part for plan in plans for part in plan.slices if part.completes]
    of_prompt = [part.chunk.end for part in done if not part.is_decode]
    assert of_prompt[-1] == 57
    assert [(part.chunk.start, part.chunk.length) for part in done if part.is_decode] == [(57 + i, 1) for i in range(8)]
    assert all(part.base // 4 >= part.chunk.start // 4 - 1 for part in done if part.is_decode)


def test_the_law_of_selections_bites() -> None:
    runner = RecordingRunner(WORLD.shadow())
    bench = Bench.of(replace(WORLD, offload=replace(OFFLOAD, decode_blocks=1, decode_lag=1)), runner)
    bench.link.put(Submit(0, prompt(57), resolved(9)))
    while not (runner.plans and any(part.is_decode for part in runner.plans[-1].slices)):
        bench.engine.step()
    plan, state = runner.plans[-1], bench.scheduler.state
    selections_follow_from_positions(state, plan)
    for wrong in (plan.slices[-1]._replace(is_decode=False), plan.slices[-1]._replace(base=0)):
        with pytest.raises(LawBroken, match="law 21"):
            selections_follow_from_positions(state, replace(plan, slices=(wrong,)))


def test_decodes_beside_it_run_in_every_step() -> None:
    """A stream that waits for another's context to pass by."""
    bench, plans = served(WORLD, Submit(0, prompt(5, 1), resolved(11)), Submit(1, prompt(60), resolved(3)))
    runs = [0 in [chunk.request_id for chunk in plan.chunks] for plan in plans]
    assert runs[:11] == [True] * 11
    assert sum(bool(plan.slices) for plan in plans[:11]) > 5
    assert len(bench.link.tokens(0)) == 11


def test_two_of_them_take_turns_chunk_by_chunk() -> None:
    """One long prompt that keeps another from beginning."""
    world = replace(WORLD, num_pages=16, offload=replace(OFFLOAD, above=32))
    _, plans = served(world, Submit(0, prompt(60), resolved(2)), Submit(1, prompt(60, 1), resolved(2)))
    done = [part.chunk.request_id for plan in plans for part in plan.slices if part.completes]
    assert done[:10] == [0, 1] * 5


def test_what_the_tier_could_never_hold_is_refused_with_its_bytes() -> None:
    """A request that waits for ever; the message says what it would take."""
    bench, _ = served(WORLD, Submit(0, prompt(160), resolved(8)))
    last = bench.link.end(0)
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == "prompt of 160 tokens + max_tokens 8 need 4200 bytes on the disk tier, which has 4000"


@pytest.mark.parametrize("partial", [1, 4])
def test_who_waits_for_the_tier_keeps_ordinary_requests_from_nothing(partial: int) -> None:
    """A tier that is taken for hours would stop all requests behind the one that waits for it."""
    submits = [
        Submit(0, prompt(100), resolved(8)),
        Submit(1, prompt(100, 1), resolved(8)),
        Submit(2, (1,) * 10, resolved(4)),  # longer than a chunk
    ]
    bench, _ = served(replace(WORLD, limits=limits_of(chunk=8, max_partial_prefills=partial)), *submits)
    order = [output.request_id for output in bench.link.outputs if output.finish_reason is not None]
    assert order == [2, 0, 1]
    check_ends(bench, {submit.request_id: submit for submit in submits})


@pytest.mark.parametrize("partial", [1, 4])
def test_who_finds_no_room_beside_them_is_offloaded_too(partial: int) -> None:
    """A prompt that fits the device, but not what an offloaded one leaves of it, would wait for hours, and keep all who
    come behind it from beginning."""
    world = replace(WORLD, num_pages=16, limits=limits_of(chunk=8, max_partial_prefills=partial))
    world = replace(world, offload=replace(OFFLOAD, above=64))
    submits = [
        Submit(0, prompt(90), resolved(8)),
        Submit(1, prompt(50, 1), resolved(6)),
        Submit(2, (1,) * 10, resolved(4)),
    ]
    bench, plans = served(world, *submits)
    order = [output.request_id for output in bench.link.outputs if output.finish_reason is not None]
    assert order == [2, 1, 0]
    assert {part.chunk.request_id for plan in plans for part in plan.slices} == {0, 1}
    check_ends(bench, {submit.request_id: submit for submit in submits})


def test_they_leave_half_of_the_device_to_others() -> None:
    """Windows that fill the device would end ordinary service until a context of an hour is through."""
    submits = [Submit(0, prompt(40), resolved(8)), Submit(1, prompt(40, 1), resolved(8))]
    submits += [Submit(2, (1,) * 14, resolved(2))]
    bench, plans = served(WORLD, *submits)
    order = [output.request_id for output in bench.link.outputs if output.finish_reason is not None]
    assert order == [2, 0, 1]
    begun = [next(plan.step for plan in plans if any(new.request_id == i for new in plan.new_slots)) for i in (0, 1)]
    ends = next(plan.step for plan in reversed(plans) if any(part.chunk.request_id == 0 for part in plan.slices))
    assert begun[1] > ends


def reported_world(depth: int = 1) -> World:
    """A world in which loads are reported."""
    world = replace(WORLD, depth=depth, limits=replace(WORLD.limits, lookahead=depth - 1))
    return replace(world, num_pages=16, offload=replace(OFFLOAD, reports_loads=True))


def begun(plans: list[BatchPlan]) -> BlocksLoaded:
    """A report of all the blocks of the chunk that was begun last."""
    step, part = next((plan.step, part) for plan in reversed(plans) for part in plan.slices if part.stop == 0)
    return BlocksLoaded(step, part.total)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_request_waits_for_what_a_disk_does_not_give(depth: int) -> None:
    """A cold disk stops every other request of the server. A chunk is begun, so that its blocks are read, and no work
    item is planned before its blocks were reported. When nothing else is left, the loop waits and plans nothing."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(depth), runner)
    bench.link.put(Submit(0, prompt(60), resolved(3)), Submit(1, prompt(5, 1), resolved(20)))
    for _ in range(60):
        bench.step()
    assert len(bench.link.tokens(1)) == 20
    assert not bench.link.tokens(0)
    slices = [part for plan in runner.plans for part in plan.slices]
    assert [part.stop for part in slices if part.base] == [0]
    assert bench.scheduler.awaits_report
    before = len(runner.plans)
    for ready in (1, 1, 3):
        bench.link.put(replace(begun(runner.plans), ready=ready))
        for _ in range(4):
            bench.step()
        assert runner.plans[-1].slices[0].stop == ready
        assert bench.scheduler.awaits_report
    assert len(runner.plans) == before + 2, "the second report says nothing new"
    while not bench.is_idle:
        if bench.scheduler.awaits_report:
            bench.link.put(begun(runner.plans))
        bench.step()
    assert len(bench.link.tokens(0)) == 3
    check_ends(bench, {0: Submit(0, prompt(60), resolved(3)), 1: Submit(1, prompt(5, 1), resolved(20))})


def test_a_block_that_cannot_be_read_ends_its_request_alone() -> None:
    """An engine that waits for ever for a block, or ends another request for it."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(), runner)
    bench.link.put(Submit(0, prompt(60), resolved(3)), Submit(1, prompt(5, 1), resolved(20)))
    for _ in range(10):
        bench.step()
    first = begun(runner.plans)
    bench.link.put(replace(first, ready=0, error="a page cannot be read"))
    bench.drain(100)
    assert bench.link.end(0).error == "a page cannot be read"
    assert len(bench.link.tokens(1)) == 20
    bench.link.put(Submit(2, prompt(60), resolved(3)))
    while not bench.scheduler.awaits_report:
        bench.step()
    before = len(runner.plans)
    bench.link.put(first, replace(first, error="late"))
    for _ in range(4):
        bench.step()
    assert len(runner.plans) == before, "a report of a chunk that is over says nothing about the next one"
    assert bench.link.end(0).num_cached_tokens == 0


def test_a_prefix_is_attended_to_where_it_lies() -> None:
    """A long prompt that is computed again, or brought to a device that has no room for it."""
    bench, _ = served(WORLD, Submit(0, prompt(60), resolved(3)))
    runner = RecordingRunner(bench.engine.runner)
    bench.engine.runner = runner
    bench.link.put(Submit(1, prompt(60), resolved(3, seed=1)))
    bench.drain(200)
    assert bench.link.end(1).num_cached_tokens == 56
    assert bench.link.end(1).num_disk_tokens == 56
    assert not any(copy.target is Tier.DEVICE for plan in runner.plans for copy in plan.copies)


def test_a_restart_finds_an_offloaded_prompt_under_its_own_salt_alone() -> None:
    """A page whose name lacks its salt is found by other tenants, and not by its own."""
    before = TierBench(WORLD)
    before.ask(0, prompt(60), 3, extra_key="mine")
    after = TierBench(WORLD, before.disk.tiers.crash())
    after.inherit(before)
    salts = ("", "theirs", "mine")
    found = {salt: after.ask(n, prompt(60), 3, extra_key=salt).num_disk_tokens for n, salt in enumerate(salts)}
    assert found == {"": 0, "theirs": 0, "mine": 48}, "all but what was on its way to the disk at the end"
    after.check()


def test_a_page_that_cannot_be_read_ends_its_request_alone() -> None:
    """An engine that dies of a disk, or a bad page that stays where the next request finds it."""
    shadow = ShadowRunner(page_size=4, vocab_size=2, tiers=ShadowTiers(), read_fails=lambda number: number == 6)
    bench = Bench.of(WORLD, shadow)
    bench.link.put(Submit(0, prompt(60), resolved(3)), Submit(1, (1,) * 6, resolved(4)))
    bench.drain(500)
    assert bench.link.end(0).error == "a page cannot be read"
    assert len(bench.link.tokens(1)) == 4
    bench.link.put(Submit(2, prompt(60), resolved(3)))
    bench.drain(500)
    assert bench.link.end(2).num_cached_tokens == 0
    assert len(bench.link.tokens(2)) == 3


def test_a_bad_copy_of_what_is_on_the_device_is_made_anew() -> None:
    """A damaged page on the tier whose node others hold on the device would end every stream that begins with it, for
    as long as a request is served from there."""
    bad = {"read": True}
    shadow = ShadowRunner(page_size=4, vocab_size=2, tiers=ShadowTiers(), read_fails=lambda _: bad["read"])
    runner = RecordingRunner(shadow)
    world = replace(WORLD, num_pages=16)
    bench = Bench.of(world, runner)
    bench.link.put(Submit(0, prompt(20), resolved(12, seed=2)))
    for _ in range(8):  # it is stored meanwhile
        bench.step()
    bench.link.put(Submit(1, prompt(60), resolved(2)))
    before = len(runner.plans)
    for _ in range(4):
        bench.step()
    assert len(bench.link.tokens(0)) < 12
    assert bench.link.end(1).num_cached_tokens >= 16
    assert bench.link.end(1).error == "a page cannot be read"
    bad["read"] = False
    assert sum(len(plan.copies) for plan in runner.plans[before:]) >= 5
    bench.link.put(Submit(2, prompt(60), resolved(2)))
    bench.drain(500)
    assert len(bench.link.tokens(0)) == 12
    assert bench.link.end(2).num_disk_tokens >= 16
    assert len(bench.link.tokens(2)) == 2


def test_no_new_request_reads_a_bad_copy_that_another_still_reads() -> None:
    """Streams that follow each other closely would keep a damaged page alive, and all but the first fail by it."""
    runner = RecordingRunner(
        ShadowRunner(
            page_size=4,
            vocab_size=2,
            tiers=ShadowTiers(),
            read_fails=lambda _: any(part.chunk.request_id == 2 for part in runner.plans[-1].slices),
        )
    )
    world = replace(WORLD, num_pages=32, tiers=TierLimits(disk_pages=100), offload=replace(OFFLOAD, above=60))
    bench = Bench.of(world, runner)
    bench.link.put(Submit(0, prompt(20), resolved(36, seed=2)))
    for _ in range(8):  # it is stored meanwhile
        bench.step()
    bench.link.put(Submit(1, prompt(100), resolved(8)), Submit(2, prompt(70), resolved(2)))
    while not runner.plans[-1].slices or runner.plans[-1].slices[0].chunk.request_id != 2:
        bench.step()
    assert bench.link.end(2).error == "a page cannot be read"
    bench.link.put(Submit(3, prompt(70), resolved(2)))
    bench.drain(500)
    assert bench.link.end(1).num_cached_tokens == bench.link.end(2).num_cached_tokens >= 16
    assert bench.link.end(3).num_cached_tokens == 0
    assert len(bench.link.tokens(3)) == 2


def test_who_waits_for_the_tier_takes_no_page_in_vain() -> None:
    """What others have just stored would be given up in every step, for one that cannot begin with it."""
    runner = RecordingRunner(WORLD.shadow())
    bench = Bench.of(replace(WORLD, num_pages=16), runner)
    bench.link.put(Submit(0, prompt(100), resolved(40)), Submit(1, prompt(60, 1), resolved(8)))
    for _ in range(4):
        bench.step()
    before = len(runner.plans)
    bench.link.put(Submit(2, (1,) * 10, resolved(4)))
    while not bench.link.tokens(0):
        bench.step()
    waiting = runner.plans[before:]
    assert len(bench.link.tokens(2)) == 4
    assert sum(len(plan.copies) for plan in waiting if any(c.request_id == 2 for c in plan.chunks)) > 0
    assert not any(plan.dropped for plan in waiting)
    bench.drain(2000)
    assert len(bench.link.tokens(1)) == 8


def test_a_page_that_cannot_be_stored_ends_its_request_alone() -> None:
    """A full disk: the request would wait for a page in its window that never becomes free."""
    bench = SlowDisk(replace(WORLD, disk_fails=1.0), random.Random(0)).bench()
    bench.link.put(Submit(0, prompt(60), resolved(3)), Submit(1, (1,) * 6, resolved(4)))
    bench.drain(500)
    error = bench.link.end(0).error
    assert error is not None
    assert error.endswith("of the context could not be stored: an injected fault")
    assert len(bench.link.tokens(1)) == 4


@pytest.mark.parametrize("schedule", ["mixed", "prefill-first"])
def test_a_stream_that_has_nothing_to_do_costs_nothing(schedule: str) -> None:
    """Where its last token has to come back first, a step is others', whole: a token less would be a page less."""
    world = replace(WORLD, num_pages=32, depth=2, offload=replace(OFFLOAD, above=90))
    world = replace(world, limits=limits_of(chunk=8, schedule=schedule))
    _, plans = served(world, Submit(0, prompt(100), resolved(40)), Submit(1, prompt(80, 1), resolved(2)))
    apart = [chunk.length for plan in plans if not plan.slices for chunk in plan.chunks if chunk.request_id == 1]
    assert apart.count(8) >= 3
    assert set(apart) <= {8, 1}


@pytest.mark.parametrize(
    ("pages", "slices"),
    [(5, False), (6, True), (10, True), (11, False), (16, False)],
    ids=["as asked", "longer than asked", "all of the tier", "more than the tier", "all of the device"],
)
def test_who_is_offloaded(pages: int, slices: bool) -> None:
    """A request that fits the device, but not the tier, is served like any other, however few were to be."""
    world = replace(WORLD, num_pages=16, tiers=TierLimits(disk_pages=10), offload=replace(OFFLOAD, above=20))
    bench, plans = served(world, Submit(0, prompt(pages * 4 - 2), resolved(2)))
    assert len(bench.link.tokens(0)) == 2
    assert any(plan.slices for plan in plans) == slices


@pytest.mark.parametrize(("pages", "slices"), [(12, False), (13, True)])
def test_who_fits_beside_them_is_not_offloaded(pages: int, slices: bool) -> None:
    """A window of four pages leaves twelve of sixteen to others, and all of these."""
    world = replace(WORLD, num_pages=16, tiers=TierLimits(disk_pages=80), offload=replace(OFFLOAD, above=64))
    _, plans = served(world, Submit(0, prompt(90), resolved(20)), Submit(1, prompt(pages * 4 - 2, 1), resolved(2)))
    assert any(part.chunk.request_id == 1 for plan in plans for part in plan.slices) == slices


def test_their_prompts_go_before_their_decodes_where_prompts_do() -> None:
    """With prefill-first a context that is read through for one token would hold up another's prompt."""
    world = replace(WORLD, num_pages=16, tiers=TierLimits(disk_pages=80), limits=limits_of(schedule="prefill-first"))
    _, plans = served(world, Submit(0, prompt(40), resolved(6)), Submit(1, prompt(100, 1), resolved(6)))
    slices = [part.chunk for plan in plans for part in plan.slices]
    kinds = [chunk.start >= (40, 100)[chunk.request_id] for chunk in slices]
    assert {chunk.request_id for chunk in slices[:10]} == {0, 1}
    assert kinds == sorted(kinds)


@pytest.mark.parametrize(("limits", "most"), [({"batch": 12}, 12), ({"batch": 64, "max_prefill_tokens": 12}, 12 + 4)])
def test_a_step_with_offloaded_work_keeps_every_budget(limits: dict[str, int], most: int) -> None:
    """Whichever is the tightest: a prompt beside it would have all of a budget that offloaded work has spent. With that
    of prefill, it may have a page however much is spent."""
    world = replace(WORLD, num_pages=32, limits=limits_of(chunk=32, **limits), offload=replace(OFFLOAD, above=90))
    _, plans = served(world, Submit(0, prompt(100), resolved(2)), Submit(1, prompt(80, 1), resolved(2)))
    both = [
        chunk.length + 4 * (part.stop - part.first)
        for plan in plans
        for part in plan.slices
        for chunk in plan.chunks
        if chunk.request_id == 1 and part.chunk.length == 8
    ]
    assert max(both) == most


@pytest.mark.parametrize(
    ("num_pages", "lengths", "bound"),
    [
        (8, (40, 40), Bound.KV_PAGES),
        (8, (25, 40), Bound.KV_PAGES),
        (8, (6, 6, 6, 40), Bound.KV_PAGES),
        (16, (100, 100), Bound.TIER_PAGES),
    ],
    ids=["windows", "what one may need", "what is left", "the tier"],
)
def test_what_keeps_an_offloaded_request_out_is_reported(
    num_pages: int, lengths: tuple[int, ...], bound: Bound
) -> None:
    """A user who looks for the option to enlarge would enlarge the step."""
    world = replace(WORLD, num_pages=num_pages, limits=limits_of(chunk=32))
    submits = [Submit(request_id, prompt(length, request_id), resolved(4)) for request_id, length in enumerate(lengths)]
    _, plans = served(world, *submits)
    assert plans[0].bound_by is bound


def test_what_cuts_offloaded_work_is_reported() -> None:
    """A user who waits for a long prompt cannot tell a budget that is too small from a disk that is too slow."""
    _, plans = served(replace(WORLD, offload=replace(OFFLOAD, load_cost=8.0)), Submit(0, prompt(60), resolved(3)))
    last = [plan for plan in plans for part in plan.slices if part.chunk.start == 56]
    assert len(last) > 2
    bounds = {plan.slices[0].completes: plan.bound_by for plan in last}
    assert bounds == {False: Bound.OFFLOAD_BUDGET, True: Bound.NOTHING}
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(), runner)
    bench.link.put(Submit(0, prompt(60), resolved(3)), Submit(1, prompt(5, 1), resolved(20)))
    for _ in range(20):
        bench.step()
    waiting = [plan for plan in runner.plans if not plan.slices and plan.num_decodes]
    assert {plan.bound_by for plan in waiting[2:]} == {Bound.DISK_READS}


def test_no_offloaded_request_passes_one_that_waits_for_the_tier() -> None:
    """Smaller ones would keep the longest waiting for as long as they come."""
    world = replace(WORLD, num_pages=24, tiers=TierLimits(disk_pages=60))
    submits = [Submit(0, prompt(100), resolved(40)), Submit(1, prompt(100, 1), resolved(40))]
    _, plans = served(world, *submits, Submit(2, prompt(40, 1), resolved(8)))
    begun = [part.chunk.request_id for plan in plans for part in plan.slices if not part.first and not part.chunk.start]
    assert list(dict.fromkeys(begun)) == [0, 1, 2]


@pytest.mark.parametrize("reserve", ["ratio", "full"])
@pytest.mark.parametrize(("max_tokens", "waits"), [(8, False), (9, True)])
def test_a_window_leaves_to_others_all_they_may_need(max_tokens: int, waits: bool, reserve: str) -> None:
    """Its pages do not come back before a long context has ended: who needs one more could only be thrown out. The
    first request may come to fill four pages of eight, and the window takes four."""
    world = replace(WORLD, limits=limits_of(chunk=8, reserve=reserve))
    bench, plans = served(world, Submit(0, prompt(8), resolved(max_tokens)), Submit(1, prompt(40, 1), resolved(4)))
    first = next(plan.step for plan in plans if plan.slices)
    last = max(plan.step for plan in plans for chunk in plan.chunks if chunk.request_id == 0)
    assert (first > last) == waits
    assert len(bench.link.tokens(0)) == max_tokens


@pytest.mark.parametrize(("max_tokens", "waits"), [(40, False), (41, True)])
def test_who_may_come_to_need_a_window_waits_for_its_end(max_tokens: int, waits: bool) -> None:
    """The tier cannot hold it, so that it is not offloaded; begun beside a stream that has four of sixteen pages, it
    would be stuck, and keep its pages from others, once it needs more than twelve."""
    world = replace(WORLD, num_pages=16, tiers=TierLimits(disk_pages=10), limits=limits_of(reserve="ratio"))
    submits = [Submit(0, prompt(36), resolved(4)), Submit(1, prompt(8, 1), resolved(max_tokens))]
    _, plans = served(replace(world, offload=replace(OFFLOAD, above=32)), *submits)
    last = max(plan.step for plan in plans if plan.slices)
    first = min(plan.step for plan in plans for chunk in plan.chunks if chunk.request_id == 1)
    assert (first > last) == waits


@pytest.mark.parametrize(("max_tokens", "waits"), [(24, False), (25, True)])
def test_windows_together_leave_to_others_all_they_may_need(max_tokens: int, waits: bool) -> None:
    """The second of two: eight of sixteen pages are left beside both."""
    world = replace(WORLD, num_pages=16, tiers=TierLimits(disk_pages=80), limits=limits_of(reserve="ratio"))
    offload = [Submit(request_id, prompt(90, 1), resolved(4)) for request_id in (1, 2)]
    _, plans = served(
        replace(world, offload=replace(OFFLOAD, above=40)), Submit(0, prompt(8), resolved(max_tokens)), *offload
    )
    first = min(plan.step for plan in plans for part in plan.slices if part.chunk.request_id == 2)
    last = max(plan.step for plan in plans for chunk in plan.chunks if chunk.request_id == 0)
    assert (first > last) == waits


def test_a_crash_ends_what_was_read_ahead() -> None:
    """The next engine counts its steps from 0 again: a report of the one before would name a step of its own."""
    reports: list[object] = []
    tiers = ShadowTiers(post=reports.append)
    tiers.read_ahead(step=3, total=8, pages=())
    tiers.crash()
    tiers.work(ShadowRunner(page_size=4))
    assert not reports


def test_steps_of_offloaded_work_grow_where_there_is_time() -> None:
    """Only resident prompts counted as prefill that was seen. So steps stayed at two quanta for ever: an offloaded
    prompt took a hundred times as many steps as without a target, and so did a resident one beside an offloaded
    stream."""
    offload = offload_of(load_cost=0.01, pair_cost=0.001, chunk_tokens=128, window_pages=16, above=256, group_blocks=8)
    limits = limits_of(chunk=256, itl_target=1_000_000, itl_quantile=0.95)
    world = World(limits, num_pages=128, page_size=16, tiers=TierLimits(disk_pages=400), offload=offload)
    runner = RecordingRunner(world.shadow())
    bench = Bench.of(world, runner)
    bench.link.put(Submit(0, prompt(1500), resolved(200)))
    while not bench.link.tokens(0):
        bench.step()
    assert len(runner.plans) < 40
    bench.link.put(Submit(1, prompt(230, 1), resolved(1)))
    while not bench.link.tokens(1):
        bench.step()
    chunks = [chunk.length for plan in runner.plans for chunk in plan.chunks if chunk.request_id == 1]
    assert chunks[0] <= 16
    assert len(chunks) < 8


@pytest.mark.parametrize(
    ("wants", "is_early"),
    [(lambda request: False, True), (lambda request: True, False), (lambda request: not request.drafts, False)],
    ids=["never", "always", "until it has drafts"],
)
def test_blocks_of_a_decode_are_read_early_unless_it_waits_for_drafts(
    wants: Callable[[Request], bool], is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a drafter the blocks of each token were read when the last one was known, though there was nothing to guess.
    Nothing is begun behind drafts in flight: where it begins is not known."""
    world = reported_world()
    world = replace(world, limits=replace(world.limits, num_draft_tokens=4))
    bench = Bench.of(world, runner := RecordingRunner(world.shadow()))
    monkeypatch.setattr(bench.scheduler.state.drafter, "wants", wants)
    submit = Submit(0, prompt(60), resolved(40))
    bench.link.put(submit)
    bench.step()
    while not bench.is_idle:
        if bench.scheduler.awaits_report:
            bench.link.put(begun(runner.plans))
        bench.step()
    check_ends(bench, {0: submit})
    slices = [plan.slices for plan in runner.plans if len(plan.slices) > 1 and plan.slices[1].is_decode]
    assert bool(slices) == is_early
    assert any(plan.num_drafts for plan in runner.plans) != is_early


def lost(plans: list[BatchPlan], page: int) -> BlocksLoaded:
    """A report that a page cannot be read, of the chunk that was begun last."""
    return replace(begun(plans), ready=0, error="the page is not what was stored", lost_page=page)


def failed_loads(bench: Bench) -> int:
    (tier,) = bench.scheduler.occupancy().tiers
    return tier.failed_loads


def until_reads(bench: Bench, plans: list[BatchPlan], base: int) -> ChunkSlice:
    """Step until a chunk that attends to `base` pages on the tier is begun, and report the blocks of those before."""
    while True:
        if awaits_loads(bench.scheduler.state):
            part = next(part for plan in reversed(plans) for part in plan.slices if part.stop == 0)
            if part.base >= base * 4:
                return part
            bench.link.put(begun(plans))
        bench.step()


def serve(bench: Bench, plans: list[BatchPlan]) -> None:
    """Step until nothing is left to do, and report all blocks at once."""
    bench.step()
    while not bench.is_idle:
        if awaits_loads(bench.scheduler.state):
            bench.link.put(begun(plans))
        bench.step()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("index", [0, 5, 11])
def test_a_lost_page_costs_a_recomputation_from_there(depth: int, index: int) -> None:
    """A flipped bit in one page ended a request of hours, and its retry found nothing of it in the cache."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(depth), runner)
    submits = {0: Submit(0, prompt(60), resolved(3)), 1: Submit(1, prompt(5, 1), resolved(20))}
    bench.link.put(*submits.values())
    until_reads(bench, runner.plans, 12)
    lease = bench.scheduler.state.offloaded[0].lease
    assert isinstance(lease, OffloadLease)
    before = len(runner.plans)
    bench.link.put(lost(runner.plans, lease.row[index]))
    serve(bench, runner.plans)
    assert failed_loads(bench) == 1
    again = [part.chunk for plan in runner.plans[before:] for part in plan.slices if part.chunk.request_id == 0]
    assert again[0].start == index * 4, "what lies before the page is kept"
    assert bench.link.end(0).num_cached_tokens == 0, "it was not cached when the request came"
    bench.link.put(Submit(2, prompt(60), resolved(1)))
    serve(bench, runner.plans)
    assert bench.link.end(2).num_cached_tokens >= 48, "all of it is found again"
    check_ends(bench, submits)


def test_a_lost_page_is_found_by_no_other_request() -> None:
    """Each request that shares the page would lose it again."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(), runner)
    bench.link.put(Submit(0, prompt(60), resolved(3)))
    until_reads(bench, runner.plans, 12)
    request = bench.scheduler.state.offloaded[0]
    assert isinstance(request.lease, OffloadLease)
    bench.link.put(lost(runner.plans, request.lease.row[5]), Submit(1, prompt(60), resolved(2)))
    bench.step()
    tree = bench.scheduler.state.kv.tree
    found: list[Node] = []
    tree.match_any(found, request.tokens, 60, "")
    assert len(found) == 5


def test_a_page_that_is_bad_for_good_is_not_used_again() -> None:
    """The page given back last is taken first: the request lost it again, until it failed, and so did the next one."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(), runner)
    submits = {number: Submit(number, prompt(60, number % 2), resolved(3)) for number in range(3)}
    bench.link.put(submits[0])
    until_reads(bench, runner.plans, 12)
    lease = bench.scheduler.state.offloaded[0].lease
    assert isinstance(lease, OffloadLease)
    bad = lease.row[5]
    bench.link.put(lost(runner.plans, bad), submits[1], submits[2])
    bench.step()
    for _ in range(5000):
        if bench.is_idle:
            break
        for request in bench.scheduler.state.offloaded.values():
            assert isinstance(request.lease, OffloadLease)
            assert bad not in request.lease.row
        if awaits_loads(bench.scheduler.state):
            bench.link.put(begun(runner.plans))
        bench.step()
    assert failed_loads(bench) == bench.scheduler.occupancy().tiers[0].retired == 1
    check_ends(bench, submits)


def test_a_bad_page_is_taken_when_there_is_no_other() -> None:
    """A request that needs all of the disk would wait for ever."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(replace(reported_world(), num_pages=8, tiers=TierLimits(disk_pages=16)), runner)
    submits = {0: Submit(0, prompt(60), resolved(4))}
    bench.link.put(submits[0])
    until_reads(bench, runner.plans, 12)
    lease = bench.scheduler.state.offloaded[0].lease
    assert isinstance(lease, OffloadLease)
    bench.link.put(lost(runner.plans, lease.row[5]))
    serve(bench, runner.plans)
    assert (failed_loads(bench), bench.scheduler.occupancy().tiers[0].retired) == (1, 0)
    check_ends(bench, submits)


def test_a_disk_that_loses_every_page_ends_the_request() -> None:
    """A request that is computed again for ever, and holds the ring meanwhile."""
    runner = RecordingRunner(ShadowRunner(page_size=4, vocab_size=2))
    bench = Bench.of(reported_world(), runner)
    bench.link.put(Submit(0, prompt(60), resolved(3)))
    bench.step()
    for _ in range(5000):
        if bench.is_idle:
            break
        if awaits_loads(bench.scheduler.state):
            lease = bench.scheduler.state.offloaded[0].lease
            assert isinstance(lease, OffloadLease)
            bench.link.put(lost(runner.plans, lease.row[0]))
        bench.step()
    last = bench.link.end(0)
    assert (last.finish_reason, last.error) == (FinishReason.TIER_UNAVAILABLE, "the page is not what was stored")
    assert failed_loads(bench) == MOST_LOSSES + 1


@pytest.mark.parametrize("seed", [0, 1, *map(slow, range(2, 6))])
def test_every_flipped_page_is_counted_and_changes_no_answer(seed: int) -> None:
    """A page of another request's, or the damaged one, in the place of what was computed again."""
    world = replace(reported_world(1 + seed % 2), flips=0.15, tiers=TierLimits(disk_pages=100))
    disk = SlowDisk(world, random.Random(seed))
    bench = disk.bench()
    submits = {n: Submit(n, prompt(50 + 5 * n, n % 2), resolved(4, seed=n)) for n in range(4)}
    submits[9] = Submit(9, prompt(6), resolved(20))
    bench.link.put(*submits.values())
    bench.drain(enough_steps(submits))
    check_ends(bench, submits)
    assert failed_loads(bench) == disk.tiers.num_lost > 0
