"""Leaps over equal decode steps give what stepping gives, to the last bit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.workload import Arrival, Leaves, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import PriorityClass, Regime, SchedulerLimits

CLASSES = (PriorityClass("interactive", 20_000), PriorityClass("standard", 90_000), PriorityClass("batch", 900_000))


def random_setup(draw: random.Random) -> SchedulerSetup:
    policy = draw.choice(["fcfs", "lpm", "priority", "deadline"])
    limits = SchedulerLimits(
        schedule=draw.choice(["mixed", "prefill-first"]),
        chunked_prefill_size=draw.choice([0, 16, 64]),
        max_batch_tokens=draw.choice([64, 200]),
        max_running_requests=draw.choice([2, 5, 16]),
        max_partial_prefills=draw.choice([1, 3]),
        reserve=draw.choice(["ratio", "full"]),
        policy=policy,
        classes=CLASSES if policy == "deadline" else (),
    )
    return SchedulerSetup(limits, draw.choice([12, 40, 400]), draw.choice([4, 16]), draw.random() < 0.8)


def random_world(draw: random.Random) -> World:
    residuals = tuple(
        Residual(draw.choice([*Regime]), draw.uniform(0.3, 3.0), draw.choice([None, draw.uniform(0, 0.002)]))
        for _ in range(draw.choice([0, 1, 40, 200]))
    )
    costs = {regime: tuple(draw.uniform(0, 300) / 10**power for power in range(6)) for regime in Regime}
    return World(costs, residuals, gap=draw.choice([0.0, 0.0003]), intake=draw.choice([0.0, 0.001]))


def random_arrivals(draw: random.Random, count: int) -> list[Arrival]:
    found, time = [], 0.0
    for index in range(count):
        time += draw.choice([0.0, draw.expovariate(20), draw.expovariate(300)])
        output = draw.randint(1, 30)
        leaves = draw.choice([None, None, Leaves(after_tokens=draw.randint(1, output)), Leaves(0, 0.03)])
        found.append(
            Arrival(
                time=time,
                prompt=Prompt((Segment(index % 3, draw.randint(1, 20)), Segment(index, draw.randint(1, 25)))),
                output_tokens=output,
                max_tokens=output + draw.choice([0, 0, 3]),
                priority=draw.randrange(3),
                priority_class=draw.choice(CLASSES).name,
                leaves=leaves,
            )
        )
    return found


@examples(60)
@given(seed=st.integers(0, 2**32))
def test_leaping_equals_stepping(seed: int) -> None:
    """Times with their residuals, preemptions, published and evicted pages, and all that the scheduler keeps."""
    draw = random.Random(seed)
    setup, world, arrivals = random_setup(draw), random_world(draw), random_arrivals(draw, 25)
    fleets = [replicas_of(setup, world, 2, seed=seed, leaps=leaps) for leaps in (True, False)]
    leapt, stepped = (simulate(arrivals, fleet) for fleet in fleets)
    assert leapt == stepped
    for one, other in zip(*fleets, strict=True):
        assert one.num_steps == other.num_steps
        assert one.occupancy() == other.occupancy()
        assert one.next_event() == other.next_event()


def test_lone_streams_are_leapt_over_nearly_whole() -> None:
    """A leap that never happens is equal to stepping, too."""
    draw = random.Random(0)
    setup = SchedulerSetup(replace(random_setup(draw).limits, schedule="mixed", chunked_prefill_size=64), 400, 16)
    [replica] = replicas_of(setup, World(dict.fromkeys(Regime, (1000.0, 0, 0, 0, 0, 0))))
    simulate([Arrival(time=0, prompt=Prompt((Segment(1, 30),)), output_tokens=500, max_tokens=500)], [replica])
    assert replica.num_leapt == 498, "all but the prompt and the last token"


@pytest.mark.parametrize("changed", [{"itl_target": 50_000}, {"lookahead": 1}])
def test_what_learns_or_overlaps_is_not_leapt_over(changed: dict[str, int]) -> None:
    """A pacer plans each step by what the one before it took."""
    limits = SchedulerLimits(
        schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8, **changed
    )
    world = World(dict.fromkeys(Regime, (1000.0, 0, 0, 0, 0, 0)))
    [replica] = replicas_of(SchedulerSetup(limits, 400, 16), world, depth=1 + limits.lookahead)
    simulate([Arrival(time=0, prompt=Prompt((Segment(1, 30),)), output_tokens=50, max_tokens=50)], [replica])
    assert replica.num_leapt == 0
