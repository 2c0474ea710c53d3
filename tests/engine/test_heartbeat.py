"""What a watched runner reports of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.engine.heartbeat import Heartbeat, Phase, WatchedRunner
from sluice.testing import Faults, FaultyRunner, ManualLink, ShadowRunner, resolved
from sluice.types import BatchPlan, Chunk, ChunkSlice, FinishReason, NewSlot, Output, Submit
from worlds import Bench, World, limits_of


class Beats(Heartbeat):
    """A heartbeat that keeps what it receives."""

    def __init__(self) -> None:
        self.step = -1
        self.in_flight: list[int] = []
        self.tokens: list[int] = []
        """Of each step that was done."""
        self.phases: list[Phase] = []

    def tick(self, phase: Phase) -> None:
        self.phases.append(phase)

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        self.step, self.in_flight = step, list(request_ids)

    def step_done(self, tokens: int) -> None:
        self.tokens.append(tokens)


class Looking(ManualLink):
    """Records which requests are reported as in flight when outputs are sent."""

    def __init__(self, beats: Beats) -> None:
        super().__init__()
        self.beats = beats
        self.seen: list[list[int]] = []

    def send(self, outputs: Sequence[Output]) -> None:
        super().send(outputs)
        self.seen.append(self.beats.in_flight)


def played(
    prompts: dict[int, tuple[int, ...]], max_tokens: int, *, depth: int = 1, faults: Faults | None = None
) -> tuple[Beats, Looking]:
    """Requests of three tokens each; a step prefills one of them, and with depth 1 one runs at a time."""
    world = World(limits_of(chunk=4, running=2 * depth - 1), num_pages=32, page_size=2, depth=depth, late=depth > 1)
    beats = Beats()
    bench = Bench.of(world, WatchedRunner(FaultyRunner(world.shadow(), faults or Faults()), beats))
    link = bench.engine.link = Looking(beats)
    for request_id, prompt in prompts.items():
        bench.scheduler.add(Submit(request_id, tuple(prompt), resolved(max_tokens)))
    bench.drain(50)
    return beats, link


TWO = {5: (0, 1, 1), 6: (1, 0, 1)}


def test_a_step_is_in_flight_until_its_result_was_committed() -> None:
    """A process that dies of a result, or sending it, died of that step."""
    beats, link = played(TWO, 2)
    assert link.seen == [[5], [5], [6], [6]]
    assert (beats.step, beats.tokens) == (3, [3, 1, 3, 1])
    assert beats.phases == [Phase.BUSY] * 2 * 4, "at its launch and when it is waited for"


def test_all_requests_of_all_steps_in_flight_are_reported() -> None:
    """With two steps in flight either may kill the process; a step that was over cannot."""
    beats, link = played(TWO | {7: (1, 1, 0)}, 1, depth=2)
    assert link.seen == [[5, 6], [6, 7], [6, 7]]
    assert beats.tokens == [3, 3, 3]


def test_a_launch_that_fails_is_over() -> None:
    """Its requests have ended; they must not be blamed if the next step kills the process."""
    beats, link = played(TWO, 2, faults=Faults(launch_raises=frozenset({0})))
    assert link.end(5).finish_reason is FinishReason.ERROR
    assert link.seen == [[5], [6], [6]]
    assert beats.tokens == [3, 1]


def test_a_wait_that_fails_is_over_and_computed_nothing() -> None:
    beats, link = played(TWO, 2, faults=Faults(wait_raises=frozenset({1})))
    assert link.end(5).finish_reason is FinishReason.ERROR
    assert link.seen == [[5], [5], [6], [6]]
    assert beats.tokens == [3, 3, 1]


def test_a_request_is_in_flight_with_each_slice_of_its_chunk() -> None:
    """Most steps of a context longer than the device complete no chunk, and any of them may kill the process."""
    runner, beats = ShadowRunner(page_size=4), Beats()
    chunk = Chunk(request_id=7, slot=0, start=0, length=4, token_ids=(1,) * 4, new_pages=(), samples=False)
    part = ChunkSlice(chunk, stored_pages=(), base=0, pages=(0,), first=0, stop=1, total=2)
    new = NewSlot(0, Submit(7, (), resolved()))
    WatchedRunner(runner, beats).launch(BatchPlan(step=3, new_slots=(new,), chunks=(), slices=(part,)))
    assert (beats.step, beats.in_flight) == (3, [7])
