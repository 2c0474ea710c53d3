"""What a very long context takes of a step when it begins and when it ends: its pages are found, reserved and given
back over several steps, in each of which the streams go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.engine.messages import Abort, Submit
from sluice.kv.offload import OffloadPool
from sluice.scheduler.admission import open_further
from sluice.scheduler.request import Status
from sluice.testing import ShadowRunner, resolved
from sluice.testing.laws import LawBroken
from sluice.testing.laws.plans import Openings
from sluice.types import FinishReason, TierLimits
from worlds import Bench, SlowDisk, World, check_ends, enough_steps, limits_of, offload_of

PER_STEP = 3
OFFLOAD = offload_of(above=64, pages_per_step=PER_STEP, load_cost=0.01)
WORLD = World(limits_of(chunk=8), num_pages=24, page_size=4, tiers=TierLimits(disk_pages=40), offload=OFFLOAD)
PAGES = 23
"""Of a long context."""


def bench_of(world: World = WORLD) -> Bench:
    return Bench.of(world, ShadowRunner(page_size=world.page_size, vocab_size=2))


def long(request: int, first: int = 1) -> Submit:
    return Submit(request, (first, *(position // 3 % 2 for position in range(1, 90))), resolved(2))


def stream(request: int, tokens: int) -> Submit:
    return Submit(request, (0, 1, 1), resolved(tokens))


def pool_of(bench: Bench) -> OffloadPool:
    return bench.scheduler.state.kv.offload


def owed(bench: Bench) -> int:
    return sum(len(closed.path) + len(closed.own) for closed in pool_of(bench).closing)


def seated(bench: Bench, *submits: Submit) -> None:
    """Step until all of these have a slot."""
    bench.link.put(*submits)
    while any(submit.request_id not in seated_ids(bench) for submit in submits):
        bench.step()


def seated_ids(bench: Bench) -> set[int]:
    return {request.id for request in bench.scheduler.state.seated()}


def test_streams_get_their_tokens_while_a_cached_prompt_is_found() -> None:
    """A million cached tokens took one step, and every stream stood still for as long. The bench checks law 20."""
    bench = bench_of()
    submits = [long(0), stream(1, 20), long(2)]
    bench.link.put(submits[0])
    bench.drain(enough_steps({0: submits[0]}))
    seated(bench, submits[1], submits[2])
    tokens, found, opening = [], [], pool_of(bench).opening
    while pool_of(bench).opening is not None:
        bench.step()
        assert opening is not None
        tokens.append(len(bench.link.tokens(1)))
        found.append(len(opening.row))
    assert found == [6, 9, 12, 15, 18, 21, PAGES]
    assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
    request = bench.scheduler.state.requests[2]
    assert (request.num_cached_tokens, request.num_disk_tokens) == (88, 88)
    bench.drain(enough_steps({2: submits[2]}))
    check_ends(bench, {submit.request_id: submit for submit in submits})


def test_a_step_that_reserves_more_pages_breaks_law_20() -> None:
    bench = bench_of()
    seated(bench, stream(0, 9), long(1))
    law, state = Openings(), bench.scheduler.state
    state.num_in_flight = 1
    law.before(state)
    open_further(state)
    law.check(state, None)
    open_further(state)
    with pytest.raises(LawBroken, match="law 20: step 1 found and reserved 6 pages of a tier, 3 are its share"):
        law.check(state, None)


def test_an_end_gives_its_pages_back_over_some_steps() -> None:
    """The end of a million tokens kept every stream waiting longer than their arrival did."""
    bench = bench_of()
    seated(bench, stream(0, 20), long(1))
    while pool_of(bench).opening is not None:
        bench.step()
    bench.link.put(Abort(1))
    left = []
    while not left or left[-1]:
        bench.step()
        left.append(owed(bench))
    # The abort gives back three pages, and so does the step after it.
    assert left == [PAGES - 6, *range(PAGES - 9, 0, -PER_STEP), 0]
    assert len(bench.link.tokens(0)) >= len(left)


def test_a_request_that_begins_meanwhile_waits_for_its_turn() -> None:
    """Two that hold a part of the tier each, and wait for the rest, would wait for ever."""
    bench = bench_of()
    submits = [stream(0, 60), long(1), long(2, first=0)]
    seated(bench, submits[0], submits[1])
    bench.link.put(submits[2])
    bench.step()
    assert pool_of(bench).opening is bench.scheduler.state.requests[1].lease
    assert bench.scheduler.state.requests[2].status is Status.WAITING
    bench.drain(enough_steps({submit.request_id: submit for submit in submits}))
    check_ends(bench, {submit.request_id: submit for submit in submits})


def test_who_is_aborted_while_its_pages_are_reserved_gives_them_back() -> None:
    bench = bench_of()
    submits = [stream(0, 30), long(1)]
    seated(bench, *submits)
    assert pool_of(bench).opening is not None
    bench.link.put(Abort(1))
    bench.drain(enough_steps({0: submits[0]}))
    assert bench.link.end(1).finish_reason is FinishReason.ABORT
    check_ends(bench, {0: submits[0]})


def test_a_flush_gives_all_back_at_once() -> None:
    """Its caller is told how many pages are free now."""
    bench = bench_of()
    seated(bench, stream(0, 30), long(1))
    while pool_of(bench).opening is not None:
        bench.step()
    bench.scheduler.abort(1)
    assert owed(bench) == PAGES - PER_STEP  # as many are given back at once
    bench.scheduler.flush_cache()
    assert owed(bench) == 0
    (use,) = bench.scheduler.state.kv.tiers.uses()
    assert use.used == 2, "what the stream has stored is left"


def test_nobody_waits_where_nothing_else_runs() -> None:
    """Steps of which there are none would be waited for."""
    bench = bench_of()
    bench.link.put(long(0))
    bench.step()
    assert pool_of(bench).opening is None
    assert bench.scheduler.state.step == 1


def test_a_request_that_the_tier_cannot_hold_beside_another_waits_for_it() -> None:
    """Its cached prefix is found over some steps, and only then its own pages are missing. To open it again at once
    would go on for ever while the other one waits for the disk, since no message would be read."""
    world = replace(WORLD, num_pages=48, tiers=TierLimits(disk_pages=40, write_policy="never"))
    world = replace(world, offload=replace(OFFLOAD, reports_loads=True))
    is_late = False
    disk = SlowDisk(world, None)
    punctual = disk.bench()
    bench = replace(punctual, disk=lambda: None if is_late else punctual.disk())
    first, second = (Submit(number, prompt_of(number, 72), resolved(2)) for number in (0, 1))
    for submit in (first, second):
        bench.link.put(submit)
        bench.drain(2000)
    again = [Submit(2, first.prompt + (1, 0) * 4, resolved(6)), Submit(3, second.prompt + (1,) * 4, resolved(6))]
    bench.link.put(again[0])
    while bench.scheduler.state.open_chunk is None:
        bench.step()
    is_late = True
    bench.link.put(again[1])
    for _ in range(10):
        bench.step()
    assert bench.scheduler.state.requests[3].status is Status.WAITING
    is_late = False
    submits = {submit.request_id: submit for submit in (first, second, *again)}
    bench.drain(enough_steps(submits))
    check_ends(bench, submits)


def prompt_of(first: int, length: int) -> tuple[int, ...]:
    return (first, *(position // 3 % 2 for position in range(1, length)))
