"""The laws of tiers notice the damage they are there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.kv.flights import PageLoad
from sluice.kv.nodes import Node
from sluice.kv.tier_pool import TierPool
from sluice.scheduler.state import SchedulerState
from sluice.testing import laws
from sluice.testing.laws import LawBroken, View
from sluice.types import PageCopy, Tier
from tier_worlds import TierBench, prompt, world_of


def midway() -> TierBench:
    """One request decodes, another loads and a third waits; two prompts lie on the disk, one of them on it alone."""
    world = world_of(num_pages=30, running=2)
    before = TierBench(world)
    before.ask(0, prompt(1, 25))
    before.ask(1, prompt(4, 25))
    bench = TierBench(world, before.disk.tiers.crash())
    bench.inherit(before)
    bench.put(1, prompt(2, 9), 20)
    bench.step(4)
    bench.pace.is_stuck = True
    bench.put(2, prompt(1, 25))
    bench.put(3, prompt(8, 9))
    bench.step(2)
    state = bench.bench.scheduler.state
    assert (len(state.decoding), len(state.loading), len(state.waiting)) == (1, 1, 1)
    return bench


def disk_of(state: SchedulerState) -> TierPool:
    return state.kv.tiers.pools[0]


def load_of(state: SchedulerState) -> PageLoad:
    (load,) = state.kv.tiers.loads
    return load


def leaf_on_disk(state: SchedulerState) -> Node:
    """The last page of the prompt, which no request needs."""
    nodes = state.kv.tree.nodes()
    return next(n for n in nodes if n.page < 0 and not n.children and not n.copies.is_loading)


def free_a_page_that_is_being_loaded(state: SchedulerState) -> None:
    state.kv.pool.give([load_of(state).pages[0]])


def load_two_to_one_page(state: SchedulerState) -> None:
    load_of(state).pages[0] = load_of(state).pages[1]


def lose_a_page_of_the_disk(state: SchedulerState) -> None:
    disk_of(state).pool.take(1)


def free_a_page_of_the_disk_that_is_held(state: SchedulerState) -> None:
    disk_of(state).pool.give([leaf_on_disk(state).copies.pages[0]])


def lie_twice_on_the_disk(state: SchedulerState) -> None:
    node = leaf_on_disk(state)
    node.copies.pages[0] = node.parent.copies.pages[0]


def lie_nowhere(state: SchedulerState) -> None:
    leaf_on_disk(state).copies.pages[0] = -1


def leave_the_tree_and_stay(state: SchedulerState) -> None:
    leaf_on_disk(state).copies.gone = True


def miscount_children_on_the_disk(state: SchedulerState) -> None:
    leaf_on_disk(state).parent.copies.children[0] += 1


def miscount_children_on_the_device(state: SchedulerState) -> None:
    leaf_on_disk(state).parent.resident += 1


def forget_who_may_leave_the_disk(state: SchedulerState) -> None:
    disk_of(state)._leaves.clear()


def be_on_the_device_behind_one_that_is_not(state: SchedulerState) -> None:
    node = leaf_on_disk(state)
    node.page = state.kv.pool.take(1)[0]
    node.parent.resident += 1


def hold_what_is_not_on_the_device(state: SchedulerState) -> None:
    leaf_on_disk(state).refs = 1


def mark_pages_that_no_request_loads(state: SchedulerState) -> None:
    leaf_on_disk(state).copies.is_loading = True


def forget_to_mark_what_is_loaded(state: SchedulerState) -> None:
    load_of(state).nodes[0].copies.is_loading = False


def wait_for_a_load_that_is_over(state: SchedulerState) -> None:
    state.kv.tiers.loads.clear()


def run_and_wait_for_a_load(state: SchedulerState) -> None:
    state.decoding[1].lease.load = load_of(state)


def end_more_copies_than_began(state: SchedulerState) -> None:
    load_of(state).open = -1


def go_on_loading_when_all_copies_have_ended(state: SchedulerState) -> None:
    load_of(state).open = 0


def load_and_decode(state: SchedulerState) -> None:
    state.decoding[2] = state.loading[2]


DAMAGE = [
    (1, free_a_page_that_is_being_loaded),
    (1, load_two_to_one_page),
    (1, lose_a_page_of_the_disk),
    (1, free_a_page_of_the_disk_that_is_held),
    (1, lie_twice_on_the_disk),
    (3, lie_nowhere),
    (3, leave_the_tree_and_stay),
    (3, miscount_children_on_the_disk),
    (3, miscount_children_on_the_device),
    (3, forget_who_may_leave_the_disk),
    (3, be_on_the_device_behind_one_that_is_not),
    (3, hold_what_is_not_on_the_device),
    (6, mark_pages_that_no_request_loads),
    (6, forget_to_mark_what_is_loaded),
    (6, wait_for_a_load_that_is_over),
    (6, run_and_wait_for_a_load),
    (6, end_more_copies_than_began),
    (6, go_on_loading_when_all_copies_have_ended),
    (6, load_and_decode),
]


def broken_laws(state: SchedulerState) -> set[int]:
    """The numbers of the laws that do not hold, each asked on its own."""
    checks: list[Callable[[], None]] = [
        lambda: laws.pages_are_conserved(View(state)),
        lambda: laws.tree_is_reachable(View(state)),
        lambda: laws.tiers_are_conserved(View(state)),
        lambda: laws.loads_are_apart(View(state)),
        lambda: laws.requests_have_one_status(state),
    ]
    broken = set()
    for check in checks:
        try:
            check()
        except LawBroken as error:
            broken.add(int(str(error).removeprefix("law ")[0]))
    return broken


@pytest.mark.parametrize(("number", "damage"), DAMAGE, ids=[damage.__name__ for _, damage in DAMAGE])
def test_a_damaged_state_breaks_its_law(number: int, damage: Callable[[SchedulerState], None]) -> None:
    state = midway().bench.scheduler.state
    assert broken_laws(state) == set()
    damage(state)
    assert number in broken_laws(state)
    with pytest.raises(LawBroken):
        laws.check_state(state)


def test_copies_beyond_the_budgets_break_law_7() -> None:
    bench = midway()
    scheduler = bench.bench.scheduler
    plan = scheduler.scheduler.schedule()
    assert plan is not None
    laws.check_plan(scheduler.state, scheduler.scheduler.limits, plan)
    copies = tuple(PageCopy(number, Tier.DEVICE, 0, Tier.DISK, number) for number in range(65))
    with pytest.raises(LawBroken, match=r"law 7: plan \d+ makes 65 copies of 64"):
        laws.check_plan(scheduler.state, scheduler.scheduler.limits, replace(plan, copies=copies))
    tiers = scheduler.state.kv.tiers
    tiers.limits = replace(tiers.limits, copies_in_flight=5)
    with pytest.raises(LawBroken, match="law 7: 7 copies are in flight, of 5"):
        laws.check_plan(scheduler.state, scheduler.scheduler.limits, plan)


def test_a_row_that_writes_what_is_being_loaded_breaks_law_9() -> None:
    bench = midway()
    scheduler = bench.bench.scheduler
    plan = scheduler.scheduler.schedule()
    assert plan is not None
    lease = scheduler.state.decoding[1].lease
    lease.pages[plan.chunks[0].start // 4] = load_of(scheduler.state).pages[2]
    with pytest.raises(LawBroken, match="law 9"):
        laws.writes_are_private(scheduler.state, plan)


def test_a_stream_that_waits_for_a_disk_breaks_law_12() -> None:
    """Copies in flight excuse only the requests that wait for them."""
    bench = midway()
    lawful = bench.bench.scheduler
    assert lawful.awaits_report
    lawful.scheduler._groups = ((),)
    with pytest.raises(LawBroken, match=r"law 12: requests \[1\] wait for a disk that is not theirs"):
        lawful.schedule()


def test_a_copy_that_never_ends_breaks_law_15() -> None:
    bench = midway()
    for request_id in (1, 2, 3):
        bench.bench.scheduler.abort(request_id)
    with pytest.raises(LawBroken, match="law 15: 7 copies are in flight"):
        laws.quiet_means_empty(bench.bench.scheduler.state)
