"""How many replicas a fleet has under which load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sluice.fleet.scaling import Held, ReplicaLoad, ScalingPolicy, ScalingRules, decide, wanted

RULES = ScalingRules(least=1, most=3, queued_tokens=1000, down_seconds=60.0)
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


def test_a_burst_and_its_end() -> None:
    """From one to three soon, and back only after a minute of less."""
    current, held, seen = 1, Held(), []
    for second in range(200):
        load = ReplicaLoad(queued_prefill_tokens=2500 if second < 20 else 0)
        count = wanted([load, *[IDLE] * (current - 1)], RULES)
        current, held = decide(count, current, held, float(second), RULES)
        seen.append(current)
    assert seen.index(3) == 3
    assert seen[3:80] == [3] * 77
    assert seen[80:] == [1] * 120


def test_a_short_lull_changes_nothing() -> None:
    current, held = 3, Held()
    for second in range(300):
        count = 3 if second % 40 == 0 else 1
        current, held = decide(count, current, held, float(second), RULES)
    assert current == 3


def test_the_policy_waits_until_every_replica_has_told_its_load() -> None:
    policy, now, state = ScalingPolicy(least=1, most=3, queued_tokens=1000, down_seconds=60.0), 0.0, {}
    told = {name: {"a": [SimpleNamespace(value=value)]} for name, value in ReplicaLoad(2500).as_json().items()}

    def ask(running: list[str], metrics: dict[str, Any]) -> int:
        nonlocal now, state
        now += 5
        context = SimpleNamespace(
            policy_state=state,
            target_num_replicas=1,
            raw_metrics=metrics,
            running_replicas=running,
            current_time=now,
        )
        count, state = policy(context)
        return count

    assert [ask(["a", "b"], told) for _ in range(3)] == [1, 1, 1]
    assert [ask(["a"], told) for _ in range(2)] == [1, 3]
    assert [ask(["a"], {}) for _ in range(2)] == [1, 1]
