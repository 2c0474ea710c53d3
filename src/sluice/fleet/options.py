"""Options of `sluice fleet`, beside those of `sluice serve`, of which some have no meaning here."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sluice.assembly.ranks import layout_of
from sluice.config import (
    ConfigError,
    EngineConfig,
    KvEventsConfig,
    ServerConfig,
    canonical,
    check_values,
    flag,
    option,
    options_of,
)
from sluice.routing.policies import POLICIES, TOLD
from sluice.routing.split import SplitLimits

RAY_PREFIX = "ray-prefix-affinity"
ROUTERS = (*POLICIES, RAY_PREFIX)
REFUSED: Mapping[str, str] = {
    "page": "the page at / watches one engine",
    "enable_admin": "the replicas are put to sleep by --replicas",
    "admin_key": "it needs --enable-admin",
    "admin_key_file": "it needs --enable-admin",
    "lora_dir": "replicas that are started later would not know of them; name adapters in --lora-modules",
    "idle_unload": "the number of replicas is what Ray changes",
    "max_connections": "the connections are those of Ray Serve's proxies",
    "trace": "replicas would write one file",
    "kv_disk": "replicas would write one file",
    **{name: "replicas of one machine would listen at one address" for name, _ in options_of(KvEventsConfig)},
    "nnodes": "Ray knows the machines of its cluster",
    "node_rank": "Ray knows the machines of its cluster",
    "dist_init_addr": "Ray knows the machines of its cluster",
    "dist_token_file": "Ray knows the machines of its cluster",
}
"""Options of `sluice serve` -> why a fleet does not take them."""


@dataclass(frozen=True)
class FleetOptions:
    """How many replicas there are, and which one serves a request."""

    replicas: int = option(1, "number of replicas, or the minimum with --max-replicas", positive=True)
    max_replicas: int | None = option(
        None, "maximum replicas; their number follows the load", unset="as --replicas", positive=True
    )
    scale_queued_tokens: int | None = option(
        None, "prompt tokens that may wait at a replica before another one is started", unset="8192", positive=True
    )
    scale_down_seconds: float | None = option(
        None, "how long fewer replicas must suffice before one is stopped", unset="120", metavar="SECONDS"
    )
    ingresses: int = option(1, "number of ingresses: if one dies, the others continue its streams", positive=True)
    address: str | None = option(
        None,
        "Ray cluster to run on, as auto or HOST:6379",
        unset="a new one on this machine, which ends with the command",
        metavar="ADDRESS",
    )
    router: str = option(
        "prefix-aware",
        f"how the replica of a request is chosen: {', '.join(ROUTERS)}",
        choices=ROUTERS,
        metavar="NAME",
    )
    prefill_replicas: int | None = option(
        None, "replicas that compute prompts only, in addition to --replicas", unset="none", positive=True
    )
    transfer_folder: str | None = option(
        None,
        "folder that all replicas see, for the pages of prompts from prefill replicas; each of these writes a file of"
        " --kv-disk-bytes there",
        unset="none",
        metavar="FOLDER",
    )
    split_tokens: int | None = option(
        None, "prefill prompts with fewer uncached tokens on the replica that decodes", unset="0"
    )
    split_patience: float | None = option(
        None,
        "prefill on the replica that decodes if the first token is expected X times as soon there",
        unset="off",
        metavar="X",
    )


@dataclass(frozen=True)
class FleetPlan:
    """All options of a fleet, checked."""

    server: ServerConfig
    engine: EngineConfig
    fleet: FleetOptions
    given: frozenset[str]
    """Names of the options that the user set."""
    factory: str
    """Builds the engines (`wire.Start`)."""
    folder: str
    """Paths of the options are relative to it, on machines that have it."""
    cores: float = 0.0
    """Cores of each rank on CPUs; 0 if that is not known yet."""

    @property
    def follows_pages(self) -> bool:
        """Whether the router looks at what replicas' prefix caches hold."""
        return self.fleet.router in TOLD and self.engine.cache.enable_prefix_caching

    @classmethod
    def of(cls, given: Mapping[str, Any], factory: str) -> FleetPlan:
        """Return the options among `given`, by the names of their fields.

        Raises:
            ConfigError: an option that there is not, that a fleet does not take, or a bad value.
        """
        fleet = _part(FleetOptions, given)
        check_values(fleet)
        _check_scaling(fleet)
        _check_split(fleet, given)
        server = _part(ServerConfig, given)
        own = {name for group in (FleetOptions, ServerConfig) for name, _ in options_of(group)}
        rest = {name: value for name, value in given.items() if name not in own}
        values = {name: given[name] for name in own & given.keys()} | canonical(rest)
        _refuse(values)
        if server.port == 0:
            raise ConfigError("--port 0 is not supported by a fleet: every machine's proxy listens on the same port")
        engine = EngineConfig.from_options(rest)
        if fleet.prefill_replicas is not None:
            _refuse_beside_split(engine)
        if engine.parallel.distributed_executor_backend == "ray":
            raise ConfigError(
                "--distributed-executor-backend ray is not supported by a fleet: the ranks of a replica share a machine"
            )
        return cls(replace(server, page=False), engine, fleet, frozenset(values), factory, os.getcwd())


def _part(group: type, given: Mapping[str, Any]) -> Any:
    return group(**{name: given[name] for name, _ in options_of(group) if name in given})


def _check_scaling(fleet: FleetOptions) -> None:
    if fleet.max_replicas is not None:
        if fleet.max_replicas <= fleet.replicas:
            raise ConfigError(f"--max-replicas must be more than --replicas {fleet.replicas}, got {fleet.max_replicas}")
        return
    for name in ("scale_queued_tokens", "scale_down_seconds"):
        if (value := getattr(fleet, name)) is not None:
            raise ConfigError(f"{flag(name)} {value:g} needs --max-replicas")


def _check_split(fleet: FleetOptions, given: Mapping[str, Any]) -> None:
    if fleet.prefill_replicas is None:
        for name in ("transfer_folder", "split_tokens", "split_patience", "kv_disk_bytes"):
            if given.get(name) is not None:
                raise ConfigError(f"{flag(name)} {given[name]} needs --prefill-replicas in a fleet")
        return
    if fleet.transfer_folder is None:
        raise ConfigError(
            f"--prefill-replicas {fleet.prefill_replicas} needs --transfer-folder FOLDER, as /dev/shm on one machine"
        )
    if fleet.router == RAY_PREFIX:
        raise ConfigError(
            f"--router {RAY_PREFIX} is not supported beside --prefill-replicas: it cannot tell a long wait"
        )
    limits_of(fleet)


def _refuse_beside_split(engine: EngineConfig) -> None:
    """
    Raises:
        ConfigError: replicas with these options cannot take the pages of prefill replicas.
    """
    beside = "is not supported beside --prefill-replicas"
    if not engine.cache.enable_prefix_caching:
        raise ConfigError(f"--no-enable-prefix-caching {beside}: prompts are handed over to the prefix cache")
    if engine.cache.kv_host_bytes is not None:
        raise ConfigError(f"--kv-host-bytes {engine.cache.kv_host_bytes} {beside}")
    if engine.cache.kv_write_policy is not None:
        raise ConfigError(
            f"--kv-write-policy {engine.cache.kv_write_policy} {beside}: replicas that decode write to no tier"
        )
    for item in fields(engine.offload):
        if (value := getattr(engine.offload, item.name)) is not None:
            raise ConfigError(
                f"{flag(item.name)} {value} {beside}: replicas that decode have no tier for contexts longer than the"
                " device"
            )
    if (size := layout_of(engine.parallel).size) > 1:
        raise ConfigError(f"a replica of {size} ranks (--tp-size, --pp-size) {beside}")


def limits_of(fleet: FleetOptions) -> SplitLimits:
    """Return which prompts prefill replicas compute.

    Raises:
        ConfigError: a value that cannot be.
    """
    patience = math.inf if fleet.split_patience is None else fleet.split_patience
    if (fleet.split_tokens or 0) < 0 or not patience > 0:
        raise ConfigError(
            f"--split-tokens must be at least 0 and --split-patience above 0, got {fleet.split_tokens} and {patience:g}"
        )
    return SplitLimits(fleet.split_tokens or 0, patience)


def _refuse(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in REFUSED and value is not False:
            raise ConfigError(f"{flag(name)} is not supported by a fleet: {REFUSED[name]}")
