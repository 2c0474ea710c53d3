"""Priority classes: requests go by the time at which their first token is due, and none is starved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.kv.manager import KVManager
from sluice.scheduler.queue import CLASS_WINDOW, PROMOTE_AFTER, WINDOW
from sluice.scheduler.request import Request, Status
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.testing.laws import steps_to_prefill
from sluice.types import BatchResult, PriorityClass, SchedulerLimits, Submit
from support import queue, shapes_of, steps_of
from timed import Timed
from worlds import Bench, World, limits_of

S = 1_000_000
CLASSES = (
    PriorityClass("interactive", S),
    PriorityClass("standard", 10 * S),
    PriorityClass("batch", 600 * S),
)


def bench_of(pages: int = 4000, page_size: int = 4, **limits: object) -> Bench:
    world = limits_of(**{"max_partial_prefills": 4, "policy": "deadline", "classes": CLASSES, **limits})
    return Bench.of(World(world, num_pages=pages, page_size=page_size))


def ask(bench: Bench, request_id: int, length: int, name: str = "", at: float = 0.0, **rest: object) -> None:
    """Queue a request of a class that arrives at a time, in seconds."""
    queue(bench, request_id, length, priority_class=name, arrived=round(at * S), **rest)


def admitted(bench: Bench, steps: int) -> list[int]:
    return [new.request_id for plan in steps_of(bench, steps) for new in plan.new_slots]


def test_the_earliest_deadline_goes_first() -> None:
    """A class overtakes another one for as long as the difference of their targets, and no longer. Without a class a
    request is standard."""
    bench = bench_of(running=1)
    ask(bench, 0, 2, "batch", at=0, max_tokens=1)
    ask(bench, 1, 2, "", at=592, max_tokens=1)
    ask(bench, 2, 2, "standard", at=589, max_tokens=1)
    ask(bench, 3, 2, "interactive", at=598, max_tokens=1)
    ask(bench, 4, 2, "interactive", at=599.5, max_tokens=1)
    ask(bench, 5, 2, "interactive", at=598, max_tokens=1)
    assert admitted(bench, 6) == [2, 3, 5, 0, 4, 1]


def test_no_wait_in_steps_goes_before_a_deadline() -> None:
    """Steps are short beside a target of ten minutes: a batch request would overtake interactive ones after seconds."""
    bench = bench_of(running=1)
    ask(bench, 0, 2, "batch", max_tokens=1)
    bench.scheduler.state.step += 2 * PROMOTE_AFTER
    ask(bench, 1, 2, "interactive", at=100, max_tokens=1)
    assert admitted(bench, 2) == [1, 0]


def test_an_unknown_class_is_refused() -> None:
    """By the scheduler too: messages may come from a server of another version."""
    with pytest.raises(ValueError, match="priority class must be one of interactive, standard, batch, got 'urgent'"):
        ask(bench_of(), 0, 2, "urgent")


@pytest.mark.parametrize("partial", [1, 4])
def test_an_urgent_prompt_overtakes_a_half_computed_one_in_the_step_it_arrives(partial: int) -> None:
    """Even if it is no shorter: the half-computed one has none of its steps until it is done."""
    bench = bench_of(chunk=32, running=4, max_partial_prefills=partial)
    ask(bench, 0, 200, "batch")
    assert shapes_of(bench) == [[(0, 0, 32)]]
    ask(bench, 1, 80, "interactive", at=1, max_tokens=1)
    assert shapes_of(bench, 3) == [[(1, 0, 32)], [(1, 32, 32)], [(1, 64, 16), (0, 32, 16)]]


def test_the_places_of_one_class_are_not_those_of_another() -> None:
    """With all places of half-computed prompts taken by batch ones, an interactive one had to wait for one of them."""
    bench = bench_of(chunk=32, running=9, max_partial_prefills=2)
    ask(bench, 0, 1000, "batch")
    ask(bench, 1, 200, "batch", at=1)
    steps_of(bench)
    assert len(bench.scheduler.state.partial) == 2
    ask(bench, 2, 100, "interactive", at=2)
    assert shapes_of(bench) == [[(2, 0, 32)]]


def test_a_flood_of_short_batch_prompts_takes_nothing_from_an_interactive_one() -> None:
    """Short prompts share the steps of a long one, but not those of a more urgent class."""
    bench = bench_of(chunk=32, running=40)
    ask(bench, 0, 128, "interactive")
    for request_id in range(1, 20):
        ask(bench, request_id, 8, "batch")
    assert shapes_of(bench, 3) == [[(0, 32 * step, 32)] for step in range(3)]


def test_an_urgent_short_prompt_shares_the_steps_of_an_earlier_deadline() -> None:
    """A long prompt whose deadline has come has half of each step, and no more while short ones are urgent."""
    bench = bench_of(chunk=32, running=40)
    ask(bench, 0, 1000, "batch")
    ask(bench, 1, 16, "interactive", at=600)
    assert shapes_of(bench) == [[(0, 0, 16), (1, 0, 16)]]


def test_an_urgent_prompt_shares_however_many_are_overdue() -> None:
    """Only the first requests of the queue are considered in a step, and a job of overdue batch prompts filled them: an
    interactive one waited until enough of the job was done."""
    bench = bench_of(pages=8000, chunk=32, running=40)
    for request_id in range(WINDOW):
        ask(bench, request_id, 200, "batch")
    ask(bench, WINDOW, 16, "interactive", at=1000, max_tokens=1)
    ask(bench, WINDOW + 1, 12, "standard", at=1000, max_tokens=1)
    assert shapes_of(bench, 2) == [[(0, 0, 16), (WINDOW, 0, 16)], [(0, 16, 20), (WINDOW + 1, 0, 12)]]


def test_the_earliest_of_each_class_are_considered_in_order() -> None:
    scheduler = Scheduler(limits_of(policy="deadline", classes=CLASSES), KVManager(num_pages=9, page_size=4))
    for request_id, name in enumerate(["batch"] * (WINDOW + 9) + ["interactive"] * (CLASS_WINDOW + 9) + ["standard"]):
        arrived = {"batch": 0, "interactive": 900 - request_id, "standard": 900}[name] * S
        scheduler.add(Submit(request_id, (1, 2), resolved(1), priority_class=name, arrived=arrived))
    state, last = scheduler.state, WINDOW + CLASS_WINDOW + 18
    for first in (last - 1, last - 2):
        earliest = range(first, first - CLASS_WINDOW, -1)
        assert [r.id for r in state.waiting.candidates(state.kv)] == [*range(WINDOW), *earliest, last]
        state.waiting.remove(state.requests[first])


def test_of_the_prompts_that_share_the_most_urgent_class_goes_first() -> None:
    """The prompt with the earliest deadline has its half already."""
    bench = bench_of(chunk=16, running=20)
    ask(bench, 0, 1000, "batch")
    ask(bench, 1, 40, "standard", at=590)
    ask(bench, 2, 60, "interactive", at=600)
    assert shapes_of(bench) == [[(0, 0, 8), (2, 0, 8)]]


def test_the_last_place_of_a_class_is_for_the_earliest_of_it() -> None:
    """Short standard prompts that share the steps of an old batch prompt would take all places of their class, and the
    earliest one, too long to share, would wait for one of them when its deadline has come."""
    bench = bench_of(chunk=16, page_size=4, running=20, max_partial_prefills=2)
    ask(bench, 0, 200, "batch")
    steps_of(bench)
    ask(bench, 1, 100, "standard", at=595)
    ask(bench, 2, 44, "standard", at=596)
    ask(bench, 3, 20, "standard", at=597)
    assert shapes_of(bench, 2) == [[(0, 16, 8), (2, 0, 8)], [(0, 24, 8), (2, 8, 8)]]
    assert bench.scheduler.state.requests[1].status is Status.WAITING


def test_what_an_urgent_prompt_leaves_of_a_step_is_for_the_next_deadline() -> None:
    """Shortest first, a long batch prompt would starve beside short batch ones for as long as there are urgent ones."""
    bench = bench_of(chunk=32, running=40)
    ask(bench, 0, 400, "batch")
    steps_of(bench)
    for request_id in range(1, 8):
        ask(bench, 2 * request_id, 8, "interactive", at=request_id, max_tokens=1)
        ask(bench, 2 * request_id + 1, 100, "batch", at=request_id)
        (plan,) = steps_of(bench)
        assert [(chunk.request_id, chunk.length) for chunk in plan.chunks] == [(2 * request_id, 8), (0, 24)]


def test_a_request_does_not_wait_for_a_less_urgent_one_with_the_same_prefix() -> None:
    """It would wait for its leader, which waits for more urgent requests than itself: as long as a batch request."""
    bench = bench_of(chunk=16, running=9)
    ask(bench, 0, 200, "batch", token=5)
    steps_of(bench)
    ask(bench, 1, 40, "interactive", at=1)
    ask(bench, 2, 200, "interactive", at=2, token=5)
    plans = steps_of(bench, 3)
    assert [chunk.request_id for chunk in plans[2].chunks] == [1, 2]


def test_equal_prompts_of_one_class_are_computed_once() -> None:
    bench = bench_of(chunk=16, running=9)
    for request_id in range(3):
        ask(bench, request_id, 40, "interactive", token=5, max_tokens=1)
    assert sum(plan.num_tokens for plan in steps_of(bench, 4)) == 40 + 2 * 4


def test_a_running_request_makes_way_for_a_more_urgent_one_with_an_earlier_deadline() -> None:
    """The last of the least urgent class; never one of the same class, nor one whose deadline is earlier: it would be
    preempted again and again."""
    bench = bench_of(running=3, chunk=64, priority_preemption=True)
    ask(bench, 0, 4, "batch", max_tokens=50)
    ask(bench, 1, 4, "batch", at=1, max_tokens=50)
    ask(bench, 2, 4, "interactive", at=2, max_tokens=50)
    steps_of(bench, 2)
    ask(bench, 3, 4, "interactive", at=3, max_tokens=50)
    steps_of(bench, 2)
    state = bench.scheduler.state
    assert [request.id for request in state.waiting] == [1]
    ask(bench, 4, 4, "standard", at=3, max_tokens=50)
    steps_of(bench, 2)
    assert sorted(state.decoding) == [2, 3, 4]
    ask(bench, 5, 4, "interactive", at=13, max_tokens=50)
    steps_of(bench, 2)
    assert sorted(state.decoding) == [2, 3, 4], "the deadline of 4 was before that of 5"


def test_a_deadline_is_kept_after_a_preemption_and_by_another_engine() -> None:
    """Counted from the new engine's start, a request that had waited for ten minutes would wait for ten more."""
    bench = bench_of(running=1)
    ask(bench, 0, 4, "batch", at=0)
    steps_of(bench)
    state = bench.scheduler.state
    ask(bench, 1, 4, "interactive", at=1)
    state.preempt(state.requests[0])
    assert [waiting.id for waiting in state.waiting] == [1, 0]
    other = bench_of(running=1)
    ask(other, 1, 4, "interactive", at=598, output_ids=(1,), is_resumed=True)
    ask(other, 2, 4, "batch", at=0, output_ids=(1,), is_resumed=True)
    ask(other, 3, 4, "interactive", at=599.5)
    assert [waiting.id for waiting in other.scheduler.state.waiting] == [1, 2, 3]


def test_steps_follow_the_itl_target_of_the_class() -> None:
    """Batch streams alone may stand still four times as long; one interactive stream beside them may not."""
    millis = 1000
    classes = tuple(replace(each, itl_target=(400 if each.name == "batch" else 60) * millis) for each in CLASSES)
    limits = limits_of(
        chunk=1024, running=16, max_partial_prefills=4, itl_target=60 * millis, policy="deadline", classes=classes
    )
    timed = Timed(limits)
    timed.ask(20, 300, priority_class="batch")
    timed.run(5)
    timed.ask(6000, 1, priority_class="batch")
    assert max(step.micros for step in timed.run(25)) > 200 * millis
    timed.ask(20, 100, priority_class="interactive")
    beside = [step for step in timed.run(30) if step.plan.num_decodes == 2 and step.prefill]
    assert beside
    assert max(step.micros for step in beside) <= 1.1 * 60 * millis


def test_a_request_has_its_own_itl_target_before_that_of_its_class() -> None:
    classes = (PriorityClass("batch", S, itl_target=400),)
    bench = bench_of(classes=classes)
    ask(bench, 0, 4, "batch")
    ask(bench, 1, 4, "batch", itl_target=300)
    requests = bench.scheduler.state.requests
    assert [requests[number].itl_target for number in (0, 1)] == [400, 300]


NAMES = [each.name for each in CLASSES]
TICK = S // 5
"""Virtual time between two steps. Interactive requests overtake standard ones for 45 of them."""


@examples(50)
@given(
    page_size=st.sampled_from([1, 4]),
    chunk_pages=st.integers(1, 24),
    partial=st.integers(1, 4),
    threshold_pages=st.sampled_from([0, 0, 1, 3]),
    prompts=st.sampled_from([0, 0, 1, 3]),
    dynamic=st.sampled_from([0, 0, 1, 50]),
    itl_target=st.sampled_from([0, 0, 1, 30_000]),
    window=st.sampled_from([WINDOW, 3, 1]),
    arrivals=st.lists(
        st.tuples(st.integers(1, 120), st.sampled_from(NAMES), st.integers(0, 6)), min_size=1, max_size=14
    ),
)
def test_every_prompt_ends_within_its_bound(
    page_size: int,
    chunk_pages: int,
    partial: int,
    threshold_pages: int,
    prompts: int,
    dynamic: int,
    itl_target: int,
    window: int,
    arrivals: list[tuple[int, str, int]],
) -> None:
    """A prompt waits for those with earlier deadlines alone: for what was there before it, and for more urgent ones
    that arrive within the difference of the targets. How many requests a step considers changes nothing of that."""
    limits = SchedulerLimits(
        "mixed",
        chunk_pages * page_size,
        chunk_pages * page_size + 16,
        16,
        max_partial_prefills=partial,
        long_prefill_token_threshold=threshold_pages * page_size,
        max_prefill_requests=prompts,
        dynamic_chunking=0 if itl_target else dynamic,
        itl_target=itl_target,
        reserve="full",
        policy="deadline",
        classes=(CLASSES[0], CLASSES[1], replace(CLASSES[2], ttft_target=20 * S)),
    )
    num_pages = sum(-(-(length + 2) // page_size) for length, *_ in arrivals)
    scheduler = Scheduler(limits, KVManager(num_pages=num_pages, page_size=page_size))
    run = Run(scheduler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.scheduler.queue.WINDOW", window)
        patch.setattr("sluice.scheduler.queue.CLASS_WINDOW", min(window, CLASS_WINDOW))
        for request_id, (length, name, gap) in enumerate(arrivals):
            run.add(Submit(request_id, (request_id,) * length, resolved(2), priority_class=name, arrived=run.now))
            run.steps(gap)
        while scheduler.has_work:
            run.steps(1)
    for request_id, ended in run.ended.items():
        deadline, arrived = run.deadlines[request_id], run.arrived[request_id]
        before = [
            len(run.prompts[other])
            for other in run.prompts
            if (run.deadlines[other], other) <= (deadline, request_id) and run.ended[other] > arrived
        ]
        bound = steps_to_prefill(limits, page_size, before)
        assert ended - arrived <= bound, f"request {request_id} took {ended - arrived} steps of {bound}"
    assert len(run.ended) == len(arrivals)


class Run:
    """Steps of a scheduler at equal intervals, and the steps in which prompts arrive and end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.deadlines: dict[int, int] = {}
        self.arrived: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    def add(self, submit: Submit) -> None:
        self.scheduler.add(submit)
        request: Request = self.scheduler.state.requests[submit.request_id]
        self.prompts[submit.request_id] = submit.prompt
        self.deadlines[submit.request_id] = request.ttft_deadline
        self.arrived[submit.request_id] = self.scheduler.state.step

    def steps(self, count: int) -> None:
        state = self.scheduler.state
        for _ in range(count):
            self.now += TICK
            plan = self.scheduler.schedule()
            if plan is None:
                return
            samples = tuple((0,) for chunk in plan.chunks if chunk.samples)
            self.scheduler.commit(plan, BatchResult(plan.step, samples), TICK)
            for chunk in plan.chunks:
                if chunk.samples:
                    self.ended.setdefault(chunk.request_id, state.step)
