"""How many replicas a fleet has under which load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sluice.engine.messages import Stats
from sluice.engine.meter import ItlTotals, Totals
from sluice.fleet.scaling import LoadMeter, ReplicaLoad, ScalingPolicy, ScalingRules, wanted
from sluice.types import Occupancy

RULES = ScalingRules(least=1, most=3, queued_tokens=1000)
IDLE = ReplicaLoad()


def test_as_many_replicas_as_share_the_queue() -> None:
    assert wanted([IDLE], RULES) == 1
    assert wanted([ReplicaLoad(queued_prefill_tokens=1000)], RULES) == 1
    assert wanted([ReplicaLoad(queued_prefill_tokens=1001)], RULES) == 2
    assert wanted([ReplicaLoad(queued_prefill_tokens=9000), IDLE], RULES) == 3


def test_streams_without_a_queue_keep_their_replicas() -> None:
    assert wanted([ReplicaLoad(used_share=0.7)] * 2, RULES) == 2
    assert wanted([ReplicaLoad(used_share=0.3)] * 2, RULES) == 1


def test_late_steps_ask_for_one_more() -> None:
    assert wanted([ReplicaLoad(late_share=0.2), IDLE], RULES) == 3
    assert wanted([ReplicaLoad(late_share=0.04), IDLE], RULES) == 1


def test_a_burst_brings_as_many_as_there_may_be_and_its_end_as_few() -> None:
    loads = [IDLE]
    seen = []
    for queued in (0, 2500, 9000, 9000, 900, 0, 0):
        loads = [ReplicaLoad(queued_prefill_tokens=queued / len(loads)) for _ in loads]
        seen.append(wanted(loads, RULES))
        loads = [IDLE] * seen[-1]
    assert seen == [1, 3, 3, 3, 1, 1, 1]


def test_a_load_is_made_of_what_a_replica_tells() -> None:
    def told(steps: int, infeasible: int, running: int = 3) -> Stats:
        itl = ItlTotals(target=0.05, margin=1.0, regimes={}, late=(2, 1, 0), infeasible=infeasible)
        occupancy = Occupancy(running=running, waiting=6, free_pages=0, cached_pages=0, total_pages=8)
        return Stats(1, occupancy, None, Totals(steps=steps, itl=itl), queued_prefill_tokens=700)

    meter = LoadMeter(slots=6)
    assert meter.seen(told(100, 8)) == ReplicaLoad(700.0, 1.5, 0.1)
    assert meter.seen(told(200, 8)) == ReplicaLoad(700.0, 1.5, 0.0)
    assert meter.seen(told(200, 8)).late_share == 0.0
    assert meter.seen(told(10, 0)).late_share == 0.0, "the engine was replaced"


def test_the_policy_waits_until_every_replica_has_told_its_load() -> None:
    policy = ScalingPolicy(least=1, most=3, queued_tokens=1000)
    told = {name: {"a": [SimpleNamespace(value=value)]} for name, value in ReplicaLoad(2500).as_json().items()}

    def ask(running: list[str], metrics: dict[str, Any]) -> int:
        context = SimpleNamespace(target_num_replicas=2, raw_metrics=metrics, running_replicas=running)
        count, _ = policy(context)
        return count

    assert ask(["a", "b"], told) == 2
    assert ask(["a"], told) == 3
    assert ask(["a"], {}) == 2
    assert ask([], told) == 2
