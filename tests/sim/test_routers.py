"""Routers in front of simulated replicas."""

from __future__ import annotations

import random

import pytest

from sluice.bench.metrics import percentile
from sluice.bench.records import Record
from sluice.routing.policies import POLICIES
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.routers import sim_router
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.workload import Arrival, Prompt, Segment
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=128, max_batch_tokens=192, max_running_requests=32)
SETUP = SchedulerSetup(LIMITS, num_pages=1024, page_size=16)
WORLD = World(dict.fromkeys(Regime, (2000.0, 300.0, 100.0, 0.0, 0.0, 0.0)))


def conversations(count: int, turns: int = 5, seed: int = 0) -> list[Arrival]:
    """Return talks of which each turn holds the turns before it, and their answers."""
    rng = random.Random(seed)
    found = []
    for talk in range(count):
        prompt, time = Prompt((Segment(1, 96),)), rng.uniform(0, count / 2)
        for turn in range(turns):
            number = 2 + 2 * (talk * turns + turn)
            prompt += Prompt((Segment(number, rng.randint(50, 400)),))
            answer = Segment(number + 1, 30)
            found.append(
                Arrival(time=time, prompt=prompt, output_tokens=30, max_tokens=30, session=str(talk), answer=answer)
            )
            prompt += Prompt((answer,))
            time += rng.uniform(2, 6)
    return sorted(found, key=lambda each: each.time)


def routed(name: str, count: int = 40) -> list[Record]:
    return simulate(conversations(count), replicas_of(SETUP, WORLD, 4), sim_router(name, SETUP, 4))


def cached_share(records: list[Record]) -> float:
    return sum(each.cached_tokens or 0 for each in records) / sum(each.prompt_tokens for each in records)


def test_prefix_aware_finds_more_in_caches_and_answers_sooner() -> None:
    """The reason for which it is there."""
    turn, aware = routed("round-robin"), routed("prefix-aware")
    assert cached_share(aware) > 1.5 * cached_share(turn)
    first = {
        name: sorted(each.arrivals[0].at - each.due for each in found)
        for name, found in (("turn", turn), ("aware", aware))
    }
    assert percentile(first["aware"], 95) < percentile(first["turn"], 95)


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_is_answered_behind_every_router(name: str) -> None:
    """A dispatcher that misses an end would count a request for ever."""
    records = routed(name, 8)
    assert len(records) == 40
    assert all(each.num_tokens == 30 for each in records)
