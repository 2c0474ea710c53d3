"""What a replica takes of a machine, and how many of them fit on those of a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.assembly.ranks import layout_of
from sluice.config import ConfigError, EngineConfig

Resources = Mapping[str, float]
"""Amounts of resources, by Ray's names."""
UNITS = 10_000
"""Parts of one resource that Ray counts in: it has no smaller ones."""


def cores_of_rank(engine: EngineConfig, cores: float, replicas: int) -> float:
    """Return the cores of each rank of each replica: its threads, or an equal share. A share below one is kept to two
    digits, so that more replicas than cores fit; each of them computes in one thread.

    Args:
        cores: of all machines.
    """
    if engine.model.threads is not None:
        return float(engine.model.threads)
    share = cores / (replicas * layout_of(engine.parallel).size)
    return float(math.floor(share)) if share >= 1 else max(0.01, math.floor(100 * share) / 100)


def with_threads(engine: EngineConfig, cores: float) -> EngineConfig:
    """Return the options with the threads of each rank.

    Args:
        cores: `cores_of_rank`.
    """
    return replace(engine, model=replace(engine.model, threads=max(1, int(cores))))


def resources_of_replica(engine: EngineConfig, cores: float, *, has_gpus: bool) -> dict[str, float]:
    """Return what a replica takes, all its ranks together.

    Args:
        cores: of each rank on CPUs.
        has_gpus: whether the cluster has any.
    """
    size, device = layout_of(engine.parallel).size, engine.model.device
    if device.startswith("cuda") or (device == "auto" and has_gpus):
        return {"CPU": float(size), "GPU": float(size)}
    return {"CPU": size * cores}


def num_fitting(each: Resources, machines: Sequence[Resources]) -> int:
    """Return how many replicas fit on machines, of which one replica takes one."""
    return sum(
        min(round(UNITS * machine.get(name, 0)) // round(UNITS * count) for name, count in each.items())
        for machine in machines
    )


def refuse_shortage(each: Resources, replicas: int, machines: Sequence[Resources], prefill: int = 0) -> None:
    """Check that replicas fit on the machines.

    Args:
        machines: what is free on each.
        prefill: replicas beside them that compute prompts alone.

    Raises:
        ConfigError: they do not; it says what is free and what each takes.
    """
    if (fitting := num_fitting(each, machines)) >= replicas + prefill:
        return
    beside = f" and --prefill-replicas {prefill} are" if prefill else " is"
    free = "; ".join(shown({name: machine.get(name, 0) for name in each}) for machine in machines) or "nothing"
    raise ConfigError(
        f"--replicas {replicas}{beside} more than fit: each takes {shown(each)} of one machine, and free are {free},"
        f" which is enough for {fitting}; lower --replicas, --threads or --tp-size, or add machines"
    )


def shown(resources: Resources) -> str:
    """Return the resources for a message."""
    return " and ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if name in resources)
