"""The engine's loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Message, Shutdown, Submit
from sluice.testing import Faults, FaultyRunner, ManualLink, ShadowRunner, resolved
from sluice.types import FinishReason, Output
from worlds import Bench, World, check_ends, limits_of


def world_of(depth: int = 1, lookahead: int = 0) -> World:
    return World(limits_of(chunk=8, lookahead=lookahead), num_pages=32, page_size=2, depth=depth, late=True)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_up_to_depth_steps_are_in_flight(depth: int) -> None:
    """Depth 1 waits for each step; depth 2 launches the next one first."""
    bench = Bench.of(world_of(depth=depth, lookahead=depth - 1))
    bench.link.put(Submit(0, (1, 0), resolved(12)))
    seen = []
    for _ in range(6):
        bench.engine.step()
        seen.append(len(bench.engine.in_flight))
    assert max(seen) == depth - 1, "after a step the oldest of `depth` has been committed"
    assert len(bench.link.tokens(0)) == 6 - (depth - 1)


def test_with_nothing_to_plan_the_oldest_step_is_waited_for() -> None:
    """Depth 2 without lookahead: the only request cannot be planned again before its sample is read."""
    bench = Bench.of(world_of(depth=2))
    bench.link.put(Submit(0, (1, 0), resolved(3)))
    bench.engine.step()
    assert len(bench.engine.in_flight) == 1
    bench.engine.step()
    assert len(bench.engine.in_flight) == 0
    assert len(bench.link.tokens(0)) == 1


def test_a_long_prompts_chunks_follow_each_other_through_the_depth() -> None:
    """One prompt fills a pipeline: a chunk needs no sample of the one before."""
    bench = Bench.of(world_of(depth=3))
    bench.link.put(Submit(0, (1,) * 30, resolved(3)))
    bench.engine.step()
    bench.engine.step()
    assert [plan.chunks[0].start for plan, *_ in bench.engine.in_flight] == [0, 8]


class BlockingLink(ManualLink):
    """Records when it may block, and then sends a shutdown."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[bool] = []

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        self.blocks.append(block)
        if block and len(self.blocks) > 1:
            return [Shutdown()]
        return super().receive(block=block, timeout=timeout)


def test_the_loop_blocks_only_when_idle_and_leaves_on_shutdown() -> None:
    """It must not spin without work, nor wait while there is work."""
    world, link = world_of(), BlockingLink()
    engine = Engine(world.scheduler(), world.shadow(), link)
    link.put(Submit(0, (1, 0), resolved(2)))
    engine.run()
    assert link.blocks == [True, False, True]
    assert link.end(0).finish_reason is FinishReason.LENGTH


def test_a_refused_request_gets_an_error_and_the_others_go_on() -> None:
    bench = Bench.of(world_of())
    bench.link.put(Submit(0, (), resolved()), Submit(1, (1,) * 60, resolved(9)), Submit(2, (1,), resolved(2)))
    bench.drain(10)
    refusal = "the prompt is empty; it needs at least one token"
    assert bench.link.end(0) == Output(0, 0, (), 0, FinishReason.ERROR, refusal)
    assert "exceed the KV pool of 64 tokens" in str(bench.link.end(1).error)
    assert bench.link.end(2).finish_reason is FinishReason.LENGTH


def test_the_first_holder_of_an_id_is_not_disturbed_by_a_second() -> None:
    bench = Bench.of(world_of())
    sent = {0: Submit(0, (1,), resolved(4))}
    bench.link.put(sent[0], Submit(0, (0, 0), resolved(1)))
    bench.drain(10)
    check_ends(bench, sent)


@pytest.mark.parametrize("when", range(8))
def test_abort_at_any_step(when: int) -> None:
    """Before admission, between chunks, in flight, decoding, after the end."""
    bench = Bench.of(world_of(depth=2, lookahead=1))
    sent = {0: Submit(0, (1,) * 20, resolved(2)), 1: Submit(1, (0, 1), resolved(6))}
    bench.link.put(*sent.values())
    for _ in range(when):
        bench.engine.step()
    bench.link.put(Abort(0), Abort(0))
    bench.drain(40)
    check_ends(bench, sent)


@pytest.mark.parametrize("fault", [Faults(launch_raises=frozenset({2})), Faults(wait_raises=frozenset({2}))])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failed_step_ends_what_was_in_it_once(fault: Faults, depth: int) -> None:
    world = world_of(depth=depth, lookahead=depth - 1)
    bench = Bench.of(world, FaultyRunner(world.shadow(), fault))
    sent = {0: Submit(0, (1, 0), resolved(8)), 1: Submit(1, (0, 0), resolved(8))}
    bench.link.put(*sent.values())
    bench.drain(60)
    late = {2: Submit(2, (1, 1), resolved(3))}
    bench.link.put(*late.values())
    bench.drain(60)
    check_ends(bench, sent | late, faults=True)
    assert {bench.link.end(i).finish_reason for i in sent} == {FinishReason.ERROR}
    assert bench.link.end(2).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("fault", [Faults(launch_raises=frozenset({2})), Faults(wait_raises=frozenset({2}))])
def test_an_engine_that_exits_on_errors_raises_the_first(fault: Faults) -> None:
    """Its process is replaced: no request may end with the error, and no other step may be committed."""
    world = world_of(depth=2, lookahead=1)
    bench = Bench.of(world, FaultyRunner(world.shadow(), fault))
    bench.engine.exit_on_error = True
    bench.link.put(Submit(0, (1, 0), resolved(8)))
    with pytest.raises(RuntimeError):
        bench.drain(60)
    assert len(bench.link.outputs) == (1 if fault.launch_raises else 2)
    assert all(output.finish_reason is None for output in bench.link.outputs)


def test_outputs_are_sent_once_a_step_and_never_empty() -> None:
    class CountingLink(ManualLink):
        batches: list[int]

        def send(self, outputs: Sequence) -> None:
            self.batches.append(len(outputs))

    world, link = world_of(), CountingLink()
    link.batches = []
    engine = Engine(world.scheduler(), world.shadow(), link)
    link.put(*(Submit(i, (1, i % 2), resolved(2)) for i in range(3)))
    for _ in range(4):
        engine.step()
    assert link.batches == [3, 3]


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Engine(world_of().scheduler(), ShadowRunner(page_size=2), ManualLink(), depth=0)
