"""How many replicas a fleet needs, from what each of them has to do.

The number follows the prompt tokens that wait and the share of its slots that each replica uses, as in Kubernetes'
autoscaler: as many replicas as bring each to its intended share. A fleet whose replicas cannot keep the ITL target
scales up by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.engine.messages import Stats

LATE_SHARE = 0.05
"""Largest acceptable share of the steps with streams that took longer than the ITL target, or were expected to."""
FULL_SHARE = 0.8
"""Largest share of a replica's slots that is to be used."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica has to do."""

    queued_prefill_tokens: float = 0.0
    used_share: float = 0.0
    """Requests by slots: above 1 if some wait for one."""
    late_share: float = 0.0
    """Share of its latest steps that did not keep the ITL target."""

    def as_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Between how many replicas, and when there are more or fewer."""

    least: int
    most: int
    queued_tokens: int
    """Prompt tokens that may wait at a replica."""


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


class LoadMeter:
    """Makes a load of what a replica tells of itself, now and then.

    Args:
        slots: requests that may be on its device at once.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._steps = self._late = 0

    def seen(self, stats: Stats) -> ReplicaLoad:
        """Return the load. Late are the steps since the last call."""
        totals, occupancy = stats.totals, stats.occupancy
        late = 0 if totals.itl is None else totals.itl.infeasible + totals.itl.late[0]
        steps, new_late = totals.steps - self._steps, late - self._late
        self._steps, self._late = totals.steps, late
        return ReplicaLoad(
            float(stats.queued_prefill_tokens),
            (occupancy.running + occupancy.waiting) / self._slots,
            new_late / steps if steps > 0 and new_late >= 0 else 0.0,
        )


class ScalingPolicy:
    """The policy as Ray Serve calls it (`ray.serve.config.AutoscalingPolicy`).

    Args:
        rules: the fields of `ScalingRules`.
    """

    def __init__(self, **rules: Any) -> None:
        self._rules = ScalingRules(**rules)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be; Ray waits until it was so for long enough.

        Args:
            context: `ray.serve.config.AutoscalingContext`.
        """
        loads = loads_of(context.raw_metrics or {}, context.running_replicas)
        if not loads or len(loads) < len(context.running_replicas):  # one has not reported yet
            return context.target_num_replicas, {}
        return wanted(loads, self._rules), {}


def loads_of(metrics: Mapping[str, Mapping[Any, Sequence[Any]]], replicas: Sequence[Any]) -> list[ReplicaLoad]:
    """Return the latest loads of the replicas that have reported them.

    Args:
        metrics: by name and replica, what was reported, oldest first (`TimeStampedValue`).
    """
    names = ReplicaLoad.__slots__
    return [
        ReplicaLoad(**{name: metrics[name][each][-1].value for name in names})
        for each in replicas
        if all(metrics.get(name, {}).get(each) for name in names)
    ]
