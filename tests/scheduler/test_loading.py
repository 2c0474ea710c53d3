"""Prefixes that come back from behind the device: who loads, who waits for it, and what if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, FlushCache, Message, Submit
from sluice.scheduler.request import Status
from sluice.testing import Faults, ManualLink, resolved
from sluice.types import FinishReason, Tier
from tier_worlds import TierBench, prompt, world_of
from worlds import World

LONG = prompt(1, 25)
"""Six full pages of four tokens, and one token that is always computed."""
LONGER = prompt(1, 6 * 64 + 1)
"""The same in pages of 64."""


def evicted(bench: TierBench) -> None:
    """Compute LONG, and another prompt that takes its pages."""
    bench.ask(0, LONG)
    bench.ask(1, prompt(2, 29))


def restarted(world: World, first: list[int] = LONG, *, also: Sequence[list[int]] = (), **changes: Any) -> TierBench:
    """An engine whose disk holds six pages from a life before, and those of other prompts."""
    before = TierBench(world)
    for number, tokens in enumerate((first, *also)):
        before.ask(number, tokens)
    bench = TierBench(replace(world, **changes), before.disk.tiers.crash())
    bench.inherit(before)
    assert bench.taken == 6 + sum(len(tokens) // world.page_size for tokens in also)
    return bench


@pytest.mark.parametrize("policy", ["write-through", "write-back"])
def test_what_was_evicted_is_loaded_and_not_computed(policy: str) -> None:
    """The whole point: without it, a returning conversation is prefilled from its first token on."""
    bench = TierBench(world_of(write_policy=policy))
    evicted(bench)
    last = bench.ask(2, LONG)
    assert (last.num_cached_tokens, last.num_disk_tokens, last.num_host_tokens) == (24, 24, 0)
    assert (bench.chunks(2)[0].start, bench.chunks(2)[0].length) == (24, 1)
    assert bench.bench.scheduler.occupancy().tiers[0].loaded == 6
    bench.check()


def test_only_what_is_not_on_the_device_is_loaded() -> None:
    """A leaf goes first, so mostly the beginning of a prompt is still there."""
    bench = TierBench(world_of())
    bench.ask(0, LONG)
    bench.ask(1, prompt(2, 13))
    last = bench.ask(2, LONG)
    assert 0 < last.num_disk_tokens < last.num_cached_tokens == 24
    assert len(bench.loads()) == last.num_disk_tokens // 4
    bench.check()


def test_the_fastest_tier_that_has_it_is_read() -> None:
    bench = TierBench(world_of(host_pages=64))
    evicted(bench)
    last = bench.ask(2, LONG)
    assert (last.num_cached_tokens, last.num_host_tokens, last.num_disk_tokens) == (24, 24, 0)
    assert {copy.source for copy in bench.loads()} == {Tier.HOST}
    bench.check()


def test_a_chunk_of_a_prompt_is_stored_when_it_is_computed() -> None:
    """SGLang's issue 33714: prompts that were cut were never backed up, the long ones of all."""
    bench = TierBench(world_of(num_pages=16, chunk=8))
    bench.put(0, LONG)
    seen = []
    for _ in range(4):
        bench.step()
        seen.append(len(bench.stores()))
    assert seen == [0, 2, 4, 6]
    bench.bench.drain(50)
    bench.check()


def test_a_page_is_stored_once() -> None:
    """Every hit of a prefix would write it again."""
    bench = TierBench(world_of(num_pages=16))
    for request_id in range(3):
        bench.ask(request_id, LONG)
    assert len(bench.stores()) == 6
    bench.check()


def test_selective_stores_what_is_used_again() -> None:
    """It is there to spare the disk prompts that never return."""
    bench = TierBench(world_of(num_pages=16, write_policy="selective"))
    bench.ask(0, LONG)
    assert bench.stores() == []
    bench.ask(1, LONG[:17] + [1] * 8)
    assert len(bench.stores()) == 4
    bench.check()


def test_selective_drops_pages_that_were_not_used_again() -> None:
    bench = TierBench(world_of(write_policy="selective"))
    evicted(bench)
    assert bench.stores() == []
    assert bench.bench.scheduler.occupancy().tiers[0].lost == 6
    assert bench.ask(2, LONG).num_cached_tokens == 0
    bench.check()


def test_what_the_host_has_no_room_for_goes_to_the_disk() -> None:
    """It is the last copy: given up, it would be computed again although there is room further down."""
    bench = TierBench(world_of(host_pages=7, write_policy="write-back"))
    evicted(bench)
    bench.ask(2, prompt(4, 29))
    last = bench.ask(3, LONG)
    assert last.num_cached_tokens == 24
    assert last.num_disk_tokens > 0
    assert (Tier.HOST, Tier.DISK) in {(copy.source, copy.target) for copy in bench.stores()}
    bench.check()


def test_what_is_being_read_is_not_overwritten() -> None:
    """A tier that is full makes room, but not where a load has not ended."""
    bench = restarted(world_of(num_pages=24, disk_pages=7))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step()
    bench.put(2, prompt(2, 13))
    bench.step(10)
    assert len(bench.bench.link.tokens(2)) == 2
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    assert bench.bench.link.end(1).num_disk_tokens == 24
    assert bench.bench.scheduler.occupancy().tiers[0].failed_loads == 0
    bench.check()


def test_write_back_stores_what_is_evicted() -> None:
    bench = TierBench(world_of(write_policy="write-back"))
    bench.ask(0, LONG)
    assert bench.stores() == []
    bench.ask(1, prompt(2, 29))
    assert len(bench.stores()) == 6
    bench.check()


def test_a_few_pages_are_computed_rather_than_loaded() -> None:
    bench = TierBench(world_of(load_back_pages=7))
    evicted(bench)
    assert bench.ask(2, LONG).num_cached_tokens == 0
    assert bench.loads() == []
    bench.check()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("schedule", ["mixed", "prefill-first"])
def test_no_request_waits_for_the_disk_of_another(depth: int, schedule: str) -> None:
    """While a prefix loads, streams and new prompts go on as if it were not there."""
    world = world_of(num_pages=24, depth=depth, lookahead=depth - 1, schedule=schedule)
    bench = restarted(world)
    bench.put(1, prompt(2, 9), 20)
    bench.step(3)
    bench.pace.is_stuck = True
    bench.put(2, LONG)
    bench.step()
    assert bench.bench.scheduler.state.requests[2].status is Status.LOADING
    bench.put(3, prompt(4, 9), 3)
    bench.step(30)
    assert len(bench.bench.link.tokens(1)) == 20
    assert len(bench.bench.link.tokens(3)) == 3
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    bench.check()


def test_who_leaves_while_it_loads_leaves_at_once() -> None:
    """Or a disk that hangs would keep slots of clients long gone. What comes later is cached for others."""
    bench = restarted(world_of(num_pages=24, running=1))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step()
    assert bench.bench.scheduler.state.requests[1].status is Status.LOADING
    bench.bench.link.put(Abort(1))
    bench.put(2, prompt(2, 9))
    bench.step(10)
    assert bench.bench.link.end(1).finish_reason is FinishReason.ABORT
    assert bench.bench.link.end(1).num_cached_tokens == 0
    assert bench.bench.link.end(2).finish_reason is FinishReason.LENGTH
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    last = bench.ask(3, LONG)
    assert (last.num_cached_tokens, last.num_disk_tokens) == (24, 0)
    bench.check()


def test_loads_of_an_aborted_request_are_given_back() -> None:
    """A load whose request went away does not keep the beginning of the prompt on the device."""
    bench = TierBench(world_of(num_pages=10))
    bench.ask(0, LONG)
    bench.ask(1, prompt(2, 17))
    bench.pace.is_stuck = True
    bench.put(2, LONG)
    bench.step()
    assert 0 < len(bench.loads()) < 6
    bench.bench.link.put(Abort(2))
    bench.put(3, prompt(4, 21))
    bench.step(10)
    assert bench.bench.link.end(3).finish_reason is FinishReason.LENGTH
    bench.pace.is_stuck = False
    bench.step(3)
    assert bench.ask(4, LONG).num_cached_tokens == 24
    bench.check()


def test_one_that_only_loads_has_not_begun() -> None:
    """A deadline to begin by is one for the disk, too."""
    bench = restarted(world_of(num_pages=24))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step()
    bench.bench.link.put(Abort(1, FinishReason.EXPIRED))
    bench.step()
    assert bench.bench.link.end(1).finish_reason is FinishReason.EXPIRED
    bench.pace.is_stuck = False
    bench.check()


def test_what_one_loads_the_others_wait_for() -> None:
    """Two that begin alike would read the same pages twice, into twice the memory."""
    bench = restarted(world_of(num_pages=24))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.put(2, LONG)
    bench.step(5)
    assert len(bench.loads()) == 6
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2)] == [Status.LOADING, Status.WAITING]
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    assert len(bench.loads()) == 6
    assert [bench.bench.link.end(i).num_cached_tokens for i in (1, 2)] == [24, 24]
    bench.check()


def test_a_load_that_fails_is_computed_again_and_counted() -> None:
    """A disk that breaks may cost time, never a request."""
    bench = restarted(world_of(num_pages=24), disk_fails=1.0)
    last = bench.ask(1, LONG)
    assert (last.finish_reason, last.num_cached_tokens, last.num_disk_tokens) == (FinishReason.LENGTH, 0, 0)
    (disk,) = bench.bench.scheduler.occupancy().tiers
    assert disk.failed_loads == 6
    bench.check()


def test_what_came_before_a_page_that_was_spoiled_is_used() -> None:
    """A flipped bit is seen by its checksum; the pages before it are good, those behind it follow from nothing."""
    bench = restarted(world_of(num_pages=24))
    bench.disk.tiers.corrupt(Tier.DISK, sorted(bench.disk.tiers.index)[2])
    last = bench.ask(1, LONG)
    assert (last.num_cached_tokens, last.num_disk_tokens) == (8, 8)
    assert bench.bench.scheduler.occupancy().tiers[0].failed_loads == 1
    bench.check()


def test_a_flush_reaches_every_tier_and_the_index() -> None:
    """A restart would bring back what was to be forgotten."""
    bench = TierBench(world_of())
    evicted(bench)
    bench.bench.link.put(FlushCache(0))
    bench.step(3)
    assert bench.disk.tiers.index == {}
    assert bench.ask(2, LONG).num_cached_tokens == 0
    bench.check()


def test_a_flush_whose_step_never_ran_reaches_the_disk_with_the_next() -> None:
    """A restart would bring back what was to be forgotten, because of a moment without memory."""
    faultless = TierBench(world_of())
    evicted(faultless)
    assert faultless.recording is not None
    bench = TierBench(world_of(), faults=Faults(launch_raises=frozenset({len(faultless.recording.plans)})))
    evicted(bench)
    forgotten = dict(bench.disk.tiers.index)
    assert len(forgotten) > 6
    bench.bench.link.put(FlushCache(0))
    bench.step()
    assert bench.disk.tiers.index == forgotten
    bench.step()
    assert bench.disk.tiers.index == {}
    bench.check()


def test_a_flush_leaves_what_is_being_loaded() -> None:
    bench = restarted(world_of(num_pages=24))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step()
    bench.bench.link.put(FlushCache(0))
    bench.step(3)
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    bench.check()


def test_a_request_that_fails_leaves_nothing_on_the_disk() -> None:
    """What made it fail may be what is in its pages: a restart may not bring it back."""
    bench = TierBench(world_of(num_pages=24), faults=Faults(row_fails={4: 0}))
    bench.put(0, LONG, 8)
    bench.step(4)
    assert len(bench.disk.tiers.index) == 6
    bench.step(3)
    assert bench.bench.link.end(0).finish_reason is FinishReason.ERROR
    assert bench.disk.tiers.index == {}
    bench.check(faults=True)


def test_a_restart_finds_what_was_stored_before() -> None:
    bench = restarted(world_of())
    last = bench.ask(1, LONG)
    assert (last.num_cached_tokens, last.num_disk_tokens) == (24, 24)
    bench.check()


def test_namespaces_survive_a_restart() -> None:
    """Or one tenant would be served another's pages."""
    before = TierBench(world_of())
    before.ask(0, LONG, extra_key="one")
    bench = TierBench(world_of(), before.disk.tiers.crash())
    bench.inherit(before)
    assert bench.ask(1, LONG, extra_key="two").num_cached_tokens == 0
    assert bench.ask(2, LONG).num_cached_tokens == 0
    assert bench.ask(3, LONG, extra_key="one").num_cached_tokens == 24
    bench.check()


def test_orphans_of_a_restart_are_forgotten() -> None:
    """A page whose predecessor was never stored cannot be reached, and would occupy the tier for ever."""
    before = TierBench(world_of())
    before.ask(0, LONG)
    stored = before.disk.tiers.crash()
    bench = TierBench(world_of(), stored[1:])
    bench.inherit(before)
    assert bench.taken == 0
    bench.step()
    assert bench.disk.tiers.index.keys() <= {stored[0].page}
    bench.check()


def test_pages_that_cannot_be_these_are_refused() -> None:
    before = TierBench(world_of())
    before.ask(0, LONG)
    stored = before.disk.tiers.crash()
    with pytest.raises(ValueError, match="there is none"):
        TierBench(world_of(disk_pages=0, host_pages=4), stored)
    with pytest.raises(ValueError, match="there is none"):
        TierBench(world_of(disk_pages=0), stored)
    with pytest.raises(ValueError, match="page 1 with 4 tokens on a disk tier of 1 pages of 4"):
        TierBench(world_of(disk_pages=1), stored)
    with pytest.raises(ValueError, match="page 0 with 4 tokens on a disk tier of 64 pages of 2"):
        TierBench(world_of(page_size=2), stored)
    with pytest.raises(ValueError, match="page -1 with 4 tokens on a disk tier of 64 pages of 4"):
        TierBench(world_of(), [stored[0]._replace(page=-1)])
    assert TierBench(world_of(disk_pages=0)).taken == 0


def test_a_step_copies_no_more_than_its_budget() -> None:
    bench = restarted(world_of(num_pages=24), tiers=world_of(copies_per_step=2, copies_in_flight=4).tiers)
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step(6)
    assert bench.recording is not None
    assert [len(plan.copies) for plan in bench.recording.plans] == [2, 2]
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    assert bench.bench.link.end(1).num_disk_tokens == 24
    bench.check()


def test_a_load_that_a_stream_might_have_to_wait_for_is_not_begun() -> None:
    """Its pages are out of reach until the disk has answered, so it is computed again instead."""
    bench = restarted(world_of(num_pages=11))
    bench.put(1, prompt(2, 9), 31)
    bench.step(2)
    bench.put(2, LONG)
    bench.bench.drain(100)
    assert bench.loads() == []
    assert bench.bench.link.end(2).num_cached_tokens == 0
    bench.check()


def test_streams_take_pages_from_each_other_rather_than_from_a_disk() -> None:
    """Memory runs out while a disk is stuck: the first request gets what it needs from the others that run."""
    bench = restarted(world_of(num_pages=15))
    bench.put(1, prompt(2, 9), 20)
    bench.put(2, prompt(4, 9), 20)
    bench.step(2)
    bench.pace.is_stuck = True
    bench.put(3, LONG)
    bench.step(60)
    assert [len(bench.bench.link.tokens(i)) for i in (1, 2, 3)] == [20, 20, 0]
    assert bench.bench.scheduler.state.preemptions > 0
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    assert bench.bench.link.end(3).num_disk_tokens == 24
    bench.check()


def test_the_loop_sleeps_while_it_can_only_wait_for_a_disk_and_a_deadline_wakes_it() -> None:
    """It would burn a core, or sleep past the deadline of who waits."""
    bench, link, clock = restarted(world_of(num_pages=24)), SleepyLink(), VirtualClock()
    engine = Engine(bench.bench.scheduler, bench.bench.engine.runner, link, clock=clock)
    bench.pace.is_stuck = True
    link.put(Submit(1, tuple(LONG), resolved(2), deadline=7.5))
    for _ in range(4):
        engine.step()
    assert link.waits == [(True, None), (False, None), (True, 7.5), (True, 7.5)]
    clock.advance(8.0)
    engine.step()
    assert link.end(1).finish_reason is FinishReason.TIMEOUT


class SleepyLink(ManualLink):
    """Says how it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[bool, float | None]] = []

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        self.waits.append((block, timeout))
        return super().receive(block=block, timeout=timeout)


def test_a_newcomer_is_counted_with_all_it_may_need_beside_what_is_loaded() -> None:
    """Very long outputs are counted in part, elsewhere: here the rest may be pages that only a disk can give back."""
    bench = restarted(world_of(num_pages=80, page_size=64, chunk=512), first=LONGER)
    bench.pace.is_stuck = True
    bench.put(1, LONGER)
    bench.step()
    bench.put(2, prompt(2, 9), 5000)
    bench.put(3, prompt(4, 9), 2)
    bench.step(2)
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2)] == [Status.LOADING, Status.WAITING]
    bench.pace.is_stuck = False
    bench.step(4)
    assert state.requests[2].status is Status.DECODING
    bench.bench.link.put(Abort(2))
    bench.bench.drain(50)
    bench.check()


@pytest.mark.parametrize("faults", [Faults(wait_raises=frozenset({1})), Faults(launch_raises=frozenset({1}))])
def test_copies_of_a_failed_step_end_with_it(faults: Faults) -> None:
    """The host never reports their ends; the disk does, but only if they were started."""
    bench = TierBench(world_of(host_pages=20), faults=faults)
    bench.put(0, LONG)
    bench.bench.drain(50)
    assert not bench.bench.scheduler.awaits_report
    assert bench.ask(1, LONG).finish_reason is FinishReason.LENGTH
    bench.check(faults=True)


def test_loads_leave_slots_to_those_who_came_before() -> None:
    """Loading takes nothing of a step, so it could take every slot before another request is admitted."""
    bench = restarted(world_of(num_pages=40, running=2), also=[prompt(2, 25)])
    bench.pace.is_stuck = True
    bench.put(1, prompt(4, 9), 8)
    bench.put(2, LONG)
    bench.put(3, prompt(2, 25))
    bench.step()
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2, 3)] == [Status.DECODING, Status.LOADING, Status.WAITING]
    bench.pace.is_stuck = False
    bench.bench.drain(50)
    bench.check()


@pytest.mark.parametrize("in_memory", [0, 3])
@pytest.mark.parametrize("num_pages", [13, 14])
def test_loads_leave_memory_to_those_who_came_before(num_pages: int, in_memory: int) -> None:
    """One whose prefix lies on the disk would pass all others, and the first request wait for the disk. Both need seven
    pages, of which some may be there."""
    bench = restarted(world_of(num_pages=num_pages))
    if in_memory:
        bench.ask(0, LONG[: 4 * in_memory + 1])
    before = len(bench.loads())
    assert before == in_memory
    bench.pace.is_stuck = True
    bench.put(1, prompt(2, 25))
    bench.put(2, LONG)
    bench.step()
    assert [chunk.length for chunk in bench.chunks(1)] == [25]
    assert len(bench.loads()) - before == (6 - in_memory if num_pages == 14 else 0)
    bench.pace.is_stuck = False
    bench.bench.drain(500)
    assert bench.bench.link.end(2).num_disk_tokens == 24 - 4 * in_memory
    bench.check()


@pytest.mark.parametrize("in_memory", [0, 3])
def test_no_load_passes_one_that_has_no_room_yet(in_memory: int) -> None:
    """Small ones would keep it waiting for as long as they come."""
    bench = restarted(world_of(num_pages=13), also=[prompt(4, 9)])
    if in_memory:
        bench.ask(0, LONG[: 4 * in_memory + 1])
    bench.put(1, prompt(2, 25))
    bench.put(2, LONG)
    bench.put(3, prompt(4, 9))
    bench.step()
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2, 3)] == [Status.DECODING, Status.WAITING, Status.WAITING]
    bench.bench.drain(500)
    bench.check()


def test_loads_that_fit_together_begin_together() -> None:
    """One after the other they would take the disk's time twice."""
    bench = restarted(world_of(num_pages=10, running=2), also=[prompt(4, 9)])
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.put(2, prompt(4, 9))
    bench.step()
    assert len(bench.loads()) == 6 + 2
    bench.pace.is_stuck = False
    bench.bench.drain(500)
    bench.check()


@pytest.mark.parametrize(("num_pages", "status"), [(14, Status.WAITING), (15, Status.DECODING)])
def test_what_a_load_leaves_to_compute_has_its_memory_from_the_start(num_pages: int, status: Status) -> None:
    """Six pages come from the disk and the seventh is computed; given to a newcomer in the step that begins the load,
    it would be missing when the load is over."""
    bench = restarted(world_of(num_pages=num_pages))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.put(2, prompt(2, 29))
    bench.step()
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2)] == [Status.LOADING, status]
    bench.pace.is_stuck = False
    bench.bench.drain(500)
    bench.check()


def test_where_nothing_is_loaded_nothing_is_left_for_it() -> None:
    """One that may come to need all of the device makes no request wait, as long as none waits for a disk."""
    bench = TierBench(world_of(num_pages=8, reserve="ratio"))
    bench.put(1, prompt(1, 8), 24)
    bench.step(2)
    bench.put(2, prompt(2, 8), 2)
    bench.step()
    assert bench.chunks(2)
    bench.bench.drain(500)
    bench.check()


def test_a_page_that_was_spoiled_is_stored_again() -> None:
    """Kept, it would fail every request that comes by."""
    bench = restarted(world_of())
    bench.disk.tiers.corrupt(Tier.DISK, sorted(bench.disk.tiers.index)[2])
    assert bench.ask(1, LONG).num_cached_tokens == 8
    bench.ask(2, prompt(2, 29))
    assert bench.ask(3, LONG).num_cached_tokens == 24
    assert bench.bench.scheduler.occupancy().tiers[0].failed_loads == 1
    bench.check()


def test_a_device_that_is_lost_takes_loads_with_it() -> None:
    """The ends of their copies are not reported any more; requests that waited for them wait again and are computed."""
    bench = restarted(world_of(num_pages=24))
    bench.pace.is_stuck = True
    bench.put(1, LONG)
    bench.step()
    bench.bench.scheduler.forget_device()
    assert bench.bench.scheduler.state.requests[1].status is Status.WAITING
    assert not bench.bench.scheduler.awaits_report
    bench.pace.is_stuck = False
    bench.disk.replace(bench.bench)
    bench.bench.drain(50)
    assert bench.bench.link.end(1).num_cached_tokens == 0
    bench.check()
