"""Routers in front of simulated replicas."""

from __future__ import annotations

import random

import pytest

from sluice.bench.metrics import percentile
from sluice.bench.records import Record
from sluice.routing.policies import POLICIES, RoundRobin
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.publishing import Published
from sluice.sim.routers import SimRouter, publish_every, sim_router
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
    replicas = replicas_of(SETUP, WORLD, 4, publish_every=publish_every(name))
    return simulate(conversations(count), replicas, sim_router(name, SETUP, 4))


def cached_share(records: list[Record]) -> float:
    return sum(each.cached_tokens or 0 for each in records) / sum(each.prompt_tokens for each in records)


@pytest.mark.parametrize("name", ["prefix-aware", "expected-ttft"])
def test_routers_that_know_prefixes_find_more_in_caches_and_answer_sooner(name: str) -> None:
    """The reason for which they are there."""
    turn, aware = routed("round-robin"), routed(name)
    assert cached_share(aware) > 1.5 * cached_share(turn)
    first = {
        which: sorted(each.arrivals[0].at - each.due for each in found)
        for which, found in (("turn", turn), ("aware", aware))
    }
    assert percentile(first["aware"], 95) < percentile(first["turn"], 95)


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_is_answered_behind_every_router(name: str) -> None:
    """A dispatcher that misses an end would count a request for ever."""
    records = routed(name, 8)
    assert len(records) == 40
    assert all(each.num_tokens == 30 for each in records)


def test_publishing_changes_no_record() -> None:
    """What a replica says of itself would otherwise depend on who listens."""
    found = [
        simulate(conversations(12), replicas, sim_router("least-loaded", SETUP, 3))
        for replicas in (replicas_of(SETUP, WORLD, 3, publish_every=every) for every in (0.0, 0.03))
    ]
    assert found[0] == found[1]


def test_replicas_publish_what_they_have_to_do_as_it_was() -> None:
    """A router that saw each moment would be better than any in front of servers."""
    told: list[Published] = []

    class Watch(SimRouter):
        def update(self, replica: int, published: Published) -> None:
            if published.occupancy is not None:
                told.append(published)
            super().update(replica, published)

    prompts = [Prompt((Segment(number, 1000),)) for number in range(4)]
    requests = [
        Arrival(time=0.2 * number, prompt=each, output_tokens=3, max_tokens=3) for number, each in enumerate(prompts)
    ]
    simulate(requests, replicas_of(SETUP, WORLD, 1, publish_every=0.25), Watch(RoundRobin(), 1))
    assert [published.taken_at for published in told] == [0.0, 0.25, 0.5]
    queued = [published.occupancy.queued_prefill_tokens for published in told]
    assert queued[0] == 1000
    assert 1000 < queued[1] < 2000 - 0.2 / 0.0003 + 300
    speeds = [published.occupancy.seconds_per_prefill_token for published in told]
    assert speeds[0] is None
    assert speeds[1] == pytest.approx(0.0003 + 0.002 / 128, rel=0.1)


def test_the_queue_of_a_replica_counts_requests_that_its_engine_has_not_taken() -> None:
    """They wait while a step runs, and its queue would look empty."""
    [replica] = replicas_of(SETUP, WORLD, publish_every=0.001)
    for number in range(3):
        replica.submit(Arrival(time=0.0, prompt=Prompt((Segment(number, 100),)), output_tokens=1, max_tokens=1), number)
    replica.advance(0.0005)
    first = replica.published()
    assert first is not None
    assert (first.occupancy.queued_prefill_tokens, first.occupancy.num_waiting) == (300, 3)


def test_what_caches_hold_is_told_with_the_pages_of_answers() -> None:
    """The next turn is known to find the answer before it, which the router never saw."""
    router = sim_router("expected-ttft", SETUP, 1)
    turns = conversations(1, turns=2)
    replicas = replicas_of(SETUP, WORLD, 1, publish_every=publish_every("expected-ttft"))
    simulate(turns[:1], replicas, router)
    asked = turns[0].num_tokens
    cached = turns[1].num_tokens - router.dispatcher.policy.uncached_tokens(turns[1], ["0"])["0"]
    assert asked < cached <= asked + 30
