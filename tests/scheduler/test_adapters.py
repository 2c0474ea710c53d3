"""Requests with adapters: which are loaded, who waits, and that nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.engine.messages import Abort, AdapterLoaded
from sluice.scheduler.request import Status
from sluice.testing import ShadowAdapters, resolved
from sluice.tracing.file import TraceFile, TraceReader
from sluice.tracing.format import VERSION, Header
from sluice.tracing.replay import replay
from sluice.types import FinishReason, Submit
from worlds import Bench, World, check_ends, limits_of


def world_of(places: int, **changes: object) -> World:
    limits = replace(limits_of(chunk=16, running=4), max_loras=places)
    return World(replace(limits, **changes), num_pages=200, page_size=4)


def bench_of(places: int, journal: TraceFile | None = None, **options: object) -> tuple[Bench, ShadowAdapters]:
    bench = Bench.of(world_of(places), journal=journal)
    adapters = ShadowAdapters(bench.link.post, places=places, **options)  # type: ignore[arg-type]
    bench.engine.adapters = adapters
    return bench, adapters


def asking(number: int, adapter: str, tokens: int = 6) -> Submit:
    return Submit(number, (0, 1, 1, 0, 1), resolved(tokens, seed=number), adapter=adapter)


def run(bench: Bench, submits: Sequence[Submit]) -> None:
    bench.link.put(*submits)
    bench.drain(2000)
    check_ends(bench, {each.request_id: each for each in submits})


def statuses(bench: Bench) -> dict[int, Status]:
    return {number: request.status for number, request in bench.scheduler.state.requests.items()}


def test_adapters_run_together_in_as_many_places_as_there_are() -> None:
    bench, adapters = bench_of(2)
    bench.link.put(asking(0, "a"), asking(1, "b"), asking(2, "c"), asking(3, ""))
    bench.step()
    assert [swap.adapter for swap in adapters.swaps] == ["a", "b"]
    assert statuses(bench)[2] is Status.HELD
    assert statuses(bench)[3] is not Status.HELD, "a request without an adapter waits for nothing"
    bench.drain(200)
    assert [swap.adapter for swap in adapters.swaps] == ["a", "b", "c"]


def test_the_adapter_that_was_used_longest_ago_gives_up_its_place() -> None:
    """Else an adapter that is used all the time would be loaded again and again."""
    bench, adapters = bench_of(2)
    for number, adapter in enumerate("abac"):
        run(bench, [asking(number, adapter)])
    assert [tuple(swap) for swap in adapters.swaps] == [("a", ""), ("b", ""), ("c", "b")]


def test_a_request_waits_until_its_adapter_is_loaded_and_others_go_on() -> None:
    bench, adapters = bench_of(1, is_late=lambda adapter: True)
    bench.link.put(asking(0, ""), asking(1, "a"))
    for _ in range(3):
        bench.step()
    assert statuses(bench)[1] is Status.HELD
    assert len(bench.link.tokens(0)) == 3
    adapters.work()
    bench.drain(100)
    assert len(bench.link.tokens(1)) == 6


def test_no_adapter_keeps_others_waiting_for_ever() -> None:
    """A new request for the adapter in the only place came with every step, and the other one would never be loaded."""
    bench, _ = bench_of(1)
    bench.link.put(asking(0, "a", tokens=3))
    bench.step()
    bench.link.put(asking(1, "b", tokens=3))
    for number in range(2, 40):
        bench.link.put(asking(number, "a", tokens=3))
        bench.step()
    assert len(bench.link.tokens(1)) == 3
    bench.drain(500)


def test_adapters_take_turns_by_all_that_wait() -> None:
    """With one place and requests of two adapters in turn, a swap for each request would take most of the time."""
    bench, adapters = bench_of(1)
    run(bench, [asking(number, "ab"[number % 2]) for number in range(20)])
    assert len(adapters.swaps) <= 3, f"{len(adapters.swaps)} swaps for 20 requests"


def test_a_request_that_leaves_while_its_adapter_is_awaited_leaves_others_their_place() -> None:
    """The place that was closing for it must open again, or requests of that adapter would wait for ever."""
    bench, _ = bench_of(1)
    bench.link.put(asking(0, "a", tokens=30))
    bench.step()
    bench.link.put(asking(1, "b"), asking(2, "a", tokens=2))
    bench.step()
    assert {statuses(bench)[number] for number in (1, 2)} == {Status.HELD}
    bench.link.put(Abort(1))
    for _ in range(4):
        bench.step()
    assert len(bench.link.tokens(2)) == 2, "it goes beside the first one"
    bench.drain(100)


def test_requests_of_an_adapter_that_cannot_be_loaded_end_with_its_error() -> None:
    bench, _ = bench_of(1, broken=("b",))
    bench.link.put(asking(0, "b"), asking(1, "b"), asking(2, "a"))
    bench.drain(100)
    for number in (0, 1):
        end = bench.link.end(number)
        assert (end.finish_reason, end.error) == (FinishReason.ERROR, "the adapter b is broken")
    assert len(bench.link.tokens(2)) == 6


def test_an_engine_without_places_refuses_adapters() -> None:
    bench, _ = bench_of(0)
    bench.link.put(asking(0, "a"))
    bench.step()
    assert "--enable-lora" in (bench.link.end(0).error or "")


def test_equal_prompts_of_two_adapters_share_no_page() -> None:
    """Keys and values of one adapter are wrong for another one."""
    bench, _ = bench_of(2)
    prompt = (0, 1) * 20
    found = {}
    for number, adapter in enumerate(("", "a", "a", "b", "")):
        bench.link.put(Submit(number, prompt, resolved(2, seed=number), adapter=adapter))
        bench.drain(100)
        found[number] = bench.link.end(number).num_cached_tokens
    assert [found[number] > 0 for number in range(5)] == [False, False, True, False, True]


def test_a_waiting_request_counts_in_the_queue() -> None:
    bench = Bench.of(world_of(1, max_queued_requests=1))
    bench.engine.adapters = ShadowAdapters(bench.link.post, is_late=lambda adapter: True)
    bench.link.put(*(asking(number, "a") for number in range(7)))
    bench.step()
    assert bench.scheduler.occupancy().held == 5, "four free slots and one that may wait"
    assert bench.link.end(6).finish_reason is FinishReason.OVERLOAD


@pytest.mark.parametrize("seed", range(25))
def test_lives_obey_the_laws_and_are_replayed(seed: int, tmp_path: Path) -> None:
    """Requests of few adapters come and leave, and loads take their time; every plan is made again from the trace."""
    draw = random.Random(seed)
    places = draw.randint(1, 3)
    world = world_of(places)
    header = Header(
        version=VERSION, sluice="test", model="shadow", token_ids=True, setup=world.setup(), depth=1, unix_time=0.0
    )
    path = tmp_path / "trace.jsonl"
    path.touch()
    journal = TraceFile(path, header, key=b"key")
    bench, adapters = bench_of(places, journal, is_late=lambda adapter: draw.random() < 0.5, broken=("e",))
    submits = [asking(number, draw.choice(["", *"abcde"]), draw.randint(1, 9)) for number in range(40)]
    for submit in submits:
        bench.link.put(submit)
        if draw.random() < 0.2:
            bench.link.put(Abort(draw.randrange(submit.request_id + 1)))
        for _ in range(draw.randint(0, 3)):
            if draw.random() < 0.4:
                adapters.work()
            bench.step()
    while not bench.engine.is_idle:
        adapters.work()
        bench.step()
    broken = {each.request_id for each in submits if each.adapter == "e"}
    check_ends(bench, {each.request_id: each for each in submits if each.request_id not in broken}, faults=True)
    bench.engine.close()
    with TraceReader(path) as trace:
        replayed = replay(trace)
    assert replayed.divergence is None, str(replayed.divergence)
    assert replayed.steps > 20


def test_a_report_of_an_adapter_that_nobody_awaits_changes_nothing() -> None:
    bench, _ = bench_of(1)
    bench.link.put(AdapterLoaded("a"))
    run(bench, [asking(0, "a")])
