"""How many replicas a fleet needs, from what each of them has to do.

The number follows the prompt tokens that wait and the share of its slots that each replica uses, as in Kubernetes'
autoscaler: so many replicas that each would have what it is to have. A fleet whose replicas cannot keep the ITL target
gets one more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LATE_SHARE = 0.05
"""Of the steps with streams, that took longer than the ITL target or were expected to: more is too many."""
FULL_SHARE = 0.8
"""Of the slots of a replica, that may be used."""
UP_SECONDS = 3.0
"""For how long more replicas must be wanted."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica has to do."""

    queued_prefill_tokens: float = 0.0
    used_share: float = 0.0
    """Of its slots."""
    late_share: float = 0.0
    """Of its latest steps, that did not keep the ITL target."""

    def as_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Between how many replicas, and when there are more or fewer."""

    least: int
    most: int
    queued_tokens: int
    """Prompt tokens that may wait at a replica."""
    down_seconds: float
    """For how long fewer replicas must be wanted."""


def wanted(loads: Sequence[ReplicaLoad], rules: ScalingRules) -> int:
    """Return how many replicas there should be.

    Args:
        loads: of those that there are.
    """
    queued = sum(load.queued_prefill_tokens for load in loads) / rules.queued_tokens
    used = sum(load.used_share for load in loads) / FULL_SHARE
    is_late = any(load.late_share > LATE_SHARE for load in loads)
    count = max(math.ceil(queued), math.ceil(used), len(loads) + 1 if is_late else 1)
    return min(max(count, rules.least), rules.most)


@dataclass(frozen=True, slots=True)
class Held:
    """Since when another number of replicas is wanted than there is."""

    direction: int = 0
    """1: more; -1: fewer; 0: neither."""
    since: float = 0.0
    most: int = 0
    """The most that were wanted since then."""


def decide(count: int, current: int, held: Held, now: float, rules: ScalingRules) -> tuple[int, Held]:
    """Return how many replicas there are to be now, and what is to be remembered.

    Args:
        count: how many are wanted.
        current: how many there are to be so far.
        now: seconds.
    """
    direction = (count > current) - (count < current)
    if direction == 0:
        return current, Held()
    if direction != held.direction:
        return current, Held(direction, now, count)
    most = max(held.most, count)
    if now - held.since < (UP_SECONDS if direction > 0 else rules.down_seconds):
        return current, Held(direction, held.since, most)
    return (count if direction > 0 else most), Held()


class ScalingPolicy:
    """The policy as Ray Serve calls it (`ray.serve.config.AutoscalingPolicy`).

    Args:
        rules: the fields of `ScalingRules`.
    """

    def __init__(self, **rules: Any) -> None:
        self._rules = ScalingRules(**rules)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there are to be, and the state for the next call.

        Args:
            context: `ray.serve.config.AutoscalingContext`.
        """
        held = Held(**context.policy_state.get("held", {}))
        current = context.target_num_replicas
        loads = loads_of(context.raw_metrics or {}, context.running_replicas)
        if len(loads) < len(context.running_replicas):  # one has not told yet
            return current, {"held": _as_dict(held)}
        decided, held = decide(wanted(loads, self._rules), current, held, context.current_time, self._rules)
        return decided, {"held": _as_dict(held)}


def loads_of(metrics: Mapping[str, Mapping[Any, Sequence[Any]]], replicas: Sequence[Any]) -> list[ReplicaLoad]:
    """Return the latest loads of the replicas that have told them.

    Args:
        metrics: by name and replica, what was told, oldest first (`TimeStampedValue`).
    """
    names = ReplicaLoad.__slots__
    return [
        ReplicaLoad(**{name: metrics[name][each][-1].value for name in names})
        for each in replicas
        if all(metrics.get(name, {}).get(each) for name in names)
    ]


def _as_dict(held: Held) -> dict[str, float]:
    return {"direction": held.direction, "since": held.since, "most": held.most}
