"""Lets Ray place the ranks on machines: `--distributed-executor-backend ray`, with the extra `ray`.

Ray keeps CPUs and GPUs for the ranks, and runs a task for each rank but the leader, which starts the rank's process and
ends with it. All that ranks exchange is as without Ray: those of the leader's machine connect to its socket, those of
other machines to a port for which they have a token. Ray's tasks and the ranks end with the leader's process.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sluice.assembly.ranks import layout_of, threads_of_rank
from sluice.config import ConfigError, EngineConfig, names_ray_cluster
from sluice.process.ranks.spawn import Entrance, RankSetup, spawn_rank
from sluice.process.secret_file import SIZE
from sluice.process.wire import Start

PLACE_SECONDS = 30.0
"""Seconds that another engine's ranks have to leave the resources that it had."""
OBJECT_STORE_BYTES = 80 << 20
"""Close to the least that Ray takes. Nothing is put there."""
EXIT_LOST = 1
"""Status of a rank whose machine or task has ended before its process."""

Resources = dict[str, float]
"""What a rank takes of a machine, or a cluster has, by Ray's names."""

LOGGER = logging.getLogger("sluice.ray")
LOCAL = "127.0.0.1"


class RayRanks:
    """The ranks that a cluster runs, as `Spawned` is those of one machine.

    Args:
        entrance: where those of other machines connect; None: all are on this one.
    """

    def __init__(self, cluster: RayCluster, entrance: Entrance | None) -> None:
        self._cluster = cluster
        self.entrance = entrance

    def ended(self) -> int | None:
        """Return the exit status of a process that has ended; None: all run."""
        return self._cluster.ended()

    def close(self) -> None:
        """End all processes."""
        self._cluster.close()


def place_ranks(
    start: Start,
    leader: Path,
    tick: Callable[[], None],
    connect: Callable[[EngineConfig], RayCluster] | None = None,
) -> RayRanks:
    """Let Ray start the ranks other than the leader.

    Args:
        leader: where the leader is going to listen.
        tick: called at least every second while this waits.
        connect: returns the machines; those of Ray by default.

    Raises:
        ConfigError: they lack what the ranks take, or Ray cannot be reached.
    """
    cluster = (connect or RayCluster)(start.config)
    size = layout_of(start.config.parallel).size
    total = cluster.total()
    each = resources_of_rank(start.config, has_gpus=total.get("GPU", 0) > 0)
    refuse_shortage(each, size, total, "has")
    if (here := cluster.place(each, size, tick)) is None:
        refuse_shortage(each, size, cluster.free(), "has free")
        raise ConfigError(
            f"Ray cannot place {size} ranks within {PLACE_SECONDS:g} s: each takes {shown(each)} of one machine, and"
            f" the first those of this one; free in the whole cluster: {shown(cluster.free())}"
        )
    if "GPU" in each:
        cluster.use_own_gpu()  # before CUDA is asked for anything
    config, entrance = start.config, None
    if "GPU" not in each:  # a machine's ranks divide its cores, and only Ray knows which those are
        config = replace(config, model=replace(config.model, threads=int(each["CPU"])))
    if not all(here):
        host = cluster.address()
        entrance = Entrance(socket.create_server((host, 0)), host, secrets.token_bytes(SIZE))
    for rank in range(1, size):
        setup = RankSetup(
            rank,
            0,  # a process sees the GPU that Ray keeps for it, and no other one
            config,
            str(leader) if here[rank] or entrance is None else entrance.address,
            start.start_seconds,
            b"" if here[rank] or entrance is None else entrance.token,
            start.log_level,
            start.log_format,
        )
        cluster.run(rank, msgspec.msgpack.encode(setup), os.getcwd())
    return RayRanks(cluster, entrance)


def resources_of_rank(config: EngineConfig, has_gpus: bool) -> Resources:
    """Return what each rank takes.

    Args:
        has_gpus: whether the cluster has any.
    """
    device = config.model.device
    if device == "cuda" or (device == "auto" and has_gpus):
        return {"CPU": 1, "GPU": 1}
    return {"CPU": threads_of_rank(config)}


def refuse_shortage(each: Resources, size: int, there: Mapping[str, float], has: str) -> None:
    """Check that a cluster has enough for all ranks.

    Args:
        there: what it has.
        has: how to say it: "has", "has free".

    Raises:
        ConfigError: it has not.
    """
    if any(size * count > there.get(name, 0) for name, count in each.items()):
        found = shown({name: there.get(name, 0) for name in each})
        raise ConfigError(
            f"--distributed-executor-backend ray: each of {size} ranks takes {shown(each)}, and Ray's cluster {has}"
            f" {found}: lower --tp-size or --pp-size, or add machines"
        )


def shown(resources: Mapping[str, float]) -> str:
    """Return the CPUs and GPUs among resources, for a message."""
    return " and ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if name in resources)


def run_rank(setup: bytes, folder: str) -> int:
    """Start a rank's process and wait for its end: what Ray runs on a rank's machine. Returns the exit status.

    Args:
        folder: where the leader runs. Paths of the options are relative to it, where a machine has it.
    """
    decoded: RankSetup = msgspec.msgpack.decode(setup, type=RankSetup)
    return spawn_rank(decoded, folder if os.path.isdir(folder) else None).wait()


def gpus_here() -> str:
    """Return the GPUs that Ray keeps for the task that calls this, as CUDA takes them."""
    return ",".join(str(gpu) for gpu in importlib.import_module("ray").get_gpu_ids())


class RayCluster:
    """The cluster that RAY_ADDRESS names, else the one that this machine belongs to, else a new one of this machine.

    Raises:
        ConfigError: the named one cannot be reached.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._groups: Any = importlib.import_module("ray.util.placement_group")
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._group: Any = None
        self._tasks: list[Any] = []
        self._each: Resources = {}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            # Ray lets workers import modules from the working directory, which may be a checkpoint.
            with chdir("/"):
                self._connect(config)
        except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
            raise ConfigError(f"--distributed-executor-backend ray: Ray cannot be reached: {error}") from error
        finally:
            signal.signal(signal.SIGTERM, handler)

    def _connect(self, config: EngineConfig) -> None:
        quiet = {"configure_logging": False, "log_to_driver": True}
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError:
            if names_ray_cluster():
                raise
            size, each = layout_of(config.parallel).size, resources_of_rank(config, has_gpus=False)
            start_local_ray(OBJECT_STORE_BYTES, num_cpus=size * int(each["CPU"]), **quiet)

    def total(self) -> Mapping[str, float]:
        """Return the resources of all machines."""
        resources: Mapping[str, float] = self._ray.cluster_resources()
        return resources

    def free(self) -> Mapping[str, float]:
        """Return the resources that are not in use."""
        resources: Mapping[str, float] = self._ray.available_resources()
        return resources

    def place(self, each: Resources, size: int, tick: Callable[[], None]) -> Sequence[bool] | None:
        """Keep resources for `size` ranks, the first of them on this machine.

        Returns:
            For each rank, whether it is on this machine; None: the resources are not free within `PLACE_SECONDS`.
        """
        self._each = each
        bundles = [dict(each) for _ in range(size)]
        bundles[0][f"node:{self.address()}"] = 0.001
        self._group = self._groups.placement_group(bundles, strategy="PACK")
        until = time.monotonic() + PLACE_SECONDS
        while not self._group.wait(1):
            tick()
            if time.monotonic() > until:
                self._groups.remove_placement_group(self._group)
                return None
        nodes = self._groups.placement_group_table(self._group)["bundles_to_node_id"]
        own = self._ray.get_runtime_context().get_node_id()
        return [nodes[rank] == own for rank in range(size)]

    def address(self) -> str:
        return str(self._ray.util.get_node_ip_address())

    def use_own_gpu(self) -> None:
        """Let this process see the GPU that is kept for the first rank, and no other one."""
        os.putenv("CUDA_VISIBLE_DEVICES", self._ray.get(self._task(0, gpus_here).remote()))

    def run(self, rank: int, setup: bytes, folder: str) -> None:
        self._tasks.append(self._task(rank, run_rank).remote(setup, folder))

    def ended(self) -> int | None:
        done, _ = self._ray.wait(self._tasks, timeout=0)
        if not done:
            return None
        try:
            return int(self._ray.get(done[0]))
        except self._ray.exceptions.RayError:
            return EXIT_LOST

    def close(self) -> None:
        self._ray.shutdown()

    def _task(self, rank: int, function: Callable[..., object]) -> Any:
        strategy = self._strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        return self._ray.remote(function).options(
            name=f"rank {rank}",
            num_cpus=self._each["CPU"],
            num_gpus=self._each.get("GPU", 0),
            max_retries=0,
            scheduling_strategy=strategy,
        )


def start_local_ray(object_store_bytes: int, **options: Any) -> None:
    """Start a cluster, and connect to it.

    Args:
        options: further ones of `ray.init`.
    """
    ray: Any = importlib.import_module("ray")
    # Ray would send statistics of its use to its makers.
    importlib.import_module("ray._common.usage.usage_lib").set_usage_stats_enabled_via_env_var(False)
    # Ray listens on all interfaces, unless its own address is the loopback one. It takes that one only on systems on
    # which it makes no clusters of several machines.
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False
    ray.init(
        address="local",
        object_store_memory=object_store_bytes,
        include_dashboard=False,
        _node_ip_address=LOCAL,
        **options,
    )
    if (address := ray.util.get_node_ip_address()) != LOCAL:
        LOGGER.warning(
            "Ray has the address %s, and not %s: its ports are open on all interfaces, and ask for its token",
            address,
            LOCAL,
        )
