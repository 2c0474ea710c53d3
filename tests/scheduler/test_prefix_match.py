"""What counts as cached of a request that waits, wherever it lies: for the order of the queue, and for its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.engine.messages import Submit
from sluice.scheduler.prefix_match import reusable_len
from sluice.scheduler.queue_limits import QueueFull
from sluice.scheduler.request import Request, Status
from sluice.testing import resolved
from sluice.types import FinishReason
from tier_worlds import TierBench, prompt, world_of
from worlds import World, offload_of

LONG = prompt(1, 25)
"""Six full pages of four tokens, and one token that is always computed."""


def restarted(world: World, *prompts: Sequence[int]) -> TierBench:
    """An engine that finds these prompts on its disk alone."""
    before = TierBench(replace(world, limits=replace(world.limits, max_queued_tokens=0)))
    for number, tokens in enumerate(prompts):
        before.ask(number, tokens)
    bench = TierBench(world, before.disk.tiers.crash())
    bench.inherit(before)
    return bench


def reusable(bench: TierBench, tokens: Sequence[int], **rest: Any) -> int:
    """How much of a request that comes now counts as cached."""
    request = Request(Submit(99, tuple(tokens), resolved(2), **rest))
    return reusable_len(bench.bench.scheduler.state.kv, request)


def test_a_very_long_prompt_is_found_piece_by_piece() -> None:
    """To find a million tokens at once stopped every stream for 44 ms, whenever the engine was asked what waits."""
    bench = restarted(world_of(num_pages=40, running=1), LONG)
    request, kv = Request(Submit(99, LONG, resolved(2))), bench.bench.scheduler.state.kv
    assert [reusable_len(kv, request, most=2) for _ in range(4)] == [8, 16, 24, 24]


@pytest.mark.parametrize("partial", [1, 4])
def test_under_lpm_a_prompt_that_lies_on_the_disk_goes_first(partial: int) -> None:
    """Counted as not cached, it waits behind prompts that have to be computed."""
    world = world_of(num_pages=40, running=1, policy="lpm", max_partial_prefills=partial)
    bench = restarted(world, LONG)
    bench.put(1, prompt(4, 9), 8)
    bench.put(2, LONG)
    bench.step()
    state = bench.bench.scheduler.state
    assert [state.requests[i].status for i in (1, 2)] == [Status.WAITING, Status.LOADING]
    bench.bench.drain(50)
    bench.check()


def test_under_lpm_the_longest_of_all_tiers_goes_first() -> None:
    """A page on the device counts as much as one on the disk: it is the sum that need not be computed."""
    bench = restarted(world_of(num_pages=40, running=1, policy="lpm"), LONG)
    bench.ask(0, prompt(4, 13))
    bench.put(1, prompt(4, 13))
    bench.put(2, LONG)
    bench.step()
    assert bench.bench.scheduler.state.requests[2].status is Status.LOADING
    bench.bench.drain(50)
    bench.put(3, prompt(4, 13))
    bench.put(4, LONG)
    bench.step()
    assert bench.bench.scheduler.state.requests[3].status is Status.WAITING
    bench.bench.drain(50)
    bench.check()


def test_tokens_on_the_disk_do_not_count_as_queued() -> None:
    """Clients of long conversations are refused although next to nothing of their prompts has to be computed."""
    bench = restarted(world_of(num_pages=40, running=1, max_queued_tokens=10), LONG)
    bench.put(1, prompt(4, 9), 20)
    bench.step()
    for number in range(2, 6):
        bench.put(number, LONG)
    bench.put(6, prompt(5, 9))
    bench.step()
    assert bench.bench.link.end(6).finish_reason is FinishReason.OVERLOAD
    assert bench.bench.link.end(6).error is not None
    assert "4 uncached tokens wait and the prompt adds 9" in str(bench.bench.link.end(6).error)
    assert len(bench.bench.scheduler.state.waiting) == 4
    bench.bench.drain(500)
    assert [bench.bench.link.end(number).finish_reason for number in range(1, 6)] == [FinishReason.LENGTH] * 5


def test_what_left_the_disk_meanwhile_counts_again() -> None:
    """A refusal that names a count of long ago; nodes that a waiting request found before they left the tree."""
    bench = restarted(world_of(num_pages=40, running=1, max_queued_tokens=9), LONG)
    bench.put(1, prompt(4, 9), 30)
    bench.step()
    bench.put(2, LONG)
    bench.step()
    scheduler = bench.bench.scheduler
    assert scheduler.state.waiting.uncached_tokens == 1
    scheduler.flush_cache()
    with pytest.raises(QueueFull, match="25 uncached tokens wait and the prompt adds 9"):
        scheduler.add(Submit(3, tuple(prompt(5, 9)), resolved(2)))


def test_only_what_would_not_be_computed_counts() -> None:
    """Fewer pages than are worth a load; the page whose last token is computed in any case; another namespace."""
    bench = restarted(world_of(num_pages=40, load_back_pages=3), LONG)
    assert reusable(bench, LONG) == 24
    assert reusable(bench, LONG[:24]) == 20
    assert reusable(bench, LONG[:13]) == 12
    assert reusable(bench, LONG[:12]) == 0
    assert reusable(bench, LONG, extra_key="mine") == 0
    bench.ask(1, LONG[:5])
    assert reusable(bench, LONG[:12]) == 4, "one page on the device, one on the disk"
    assert reusable(bench, LONG) == 24


def test_what_an_offloaded_request_reads_on_the_disk_counts() -> None:
    """It loads nothing, and no page is too few."""
    tokens = prompt(1, 61)
    world = replace(world_of(num_pages=8, load_back_pages=30), offload=offload_of())
    bench = restarted(world, tokens)
    stored = bench.taken * world.page_size
    assert 40 <= stored < 61
    assert reusable(bench, tokens) == stored


def test_whether_two_prompts_begin_alike_does_not_depend_on_what_was_asked_before() -> None:
    """They are compared piece by piece, and what was found of a pair is remembered."""
    length = 3000
    base = prompt(1, length)
    prompts = [base] + [(*base[:at], base[at] + 1, *base[at + 1 :]) for at in (0, 1023, 1024, 1976, 2500, 2999)]
    prompts += [base[:2000], base[:1]]
    requests = [Request(Submit(number, tokens, resolved(2))) for number, tokens in enumerate(prompts)]
    other_key = Request(Submit(99, base, resolved(2), extra_key="mine"))
    places = (1, 1000, 2000, 2999, 3000, 1024)
    for one in requests:
        assert not any(one.begins_like(other_key, place) for place in places)
        for place in (*places, *reversed(places)):
            for other in requests:
                is_alike = place <= len(other.tokens) and one.tokens[:place] == other.tokens[:place]
                assert one.begins_like(other, place) == (is_alike and place <= len(one.tokens))
