"""Options of `sluice fleet`, beside those of `sluice serve`, of which some have no meaning here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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

RAY_PREFIX = "ray-prefix-affinity"
ROUTERS = (*POLICIES, RAY_PREFIX)
REFUSED: Mapping[str, str] = {
    "page": "the page at / watches one engine",
    "enable_admin": "the replicas are put to sleep by --replicas",
    "admin_key": "it needs --enable-admin",
    "admin_key_file": "it needs --enable-admin",
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

    replicas: int = option(1, "number of replicas, or the least with --max-replicas", positive=True)
    max_replicas: int | None = option(
        None, "most replicas; their number follows the load", unset="as --replicas", positive=True
    )
    scale_queued_tokens: int | None = option(
        None, "prompt tokens that may wait at a replica before there is one more", unset="8192", positive=True
    )
    scale_down_seconds: float | None = option(
        None, "for how long fewer replicas must do before there is one less", unset="120", metavar="SECONDS"
    )
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
    """Of each rank on CPUs; 0: not known yet."""

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
        server = _part(ServerConfig, given)
        own = {name for group in (FleetOptions, ServerConfig) for name, _ in options_of(group)}
        rest = {name: value for name, value in given.items() if name not in own}
        values = {name: given[name] for name in own & given.keys()} | canonical(rest)
        _refuse(values)
        if server.port == 0:
            raise ConfigError("--port 0 is not supported by a fleet: every machine's proxy listens on the same port")
        engine = EngineConfig.from_options(rest)
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


def _refuse(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in REFUSED and value is not False:
            raise ConfigError(f"{flag(name)} is not supported by a fleet: {REFUSED[name]}")
