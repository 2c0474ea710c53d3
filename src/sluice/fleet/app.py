"""The fleet as an application of Ray Serve: for `sluice fleet`, `serve run sluice.fleet:build_app` and config files."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluice.config import ConfigError
from sluice.fleet.arguments import given_of
from sluice.fleet.options import RAY_PREFIX, FleetOptions, FleetPlan
from sluice.fleet.resources import cores_of_rank, resources_of_replica, with_threads
from sluice.process.wire import FACTORY

INSTALL = "pip install 'sluice-llm[ray]'"
ROUTER, AFFINITY = "sluice.fleet.ray_routers:FleetRouter", "sluice.fleet.ray_routers:AffinityRouter"
REPLICA, PREFILL, INGRESS = "replica", "prefill", "ingress"
"""Names of the deployments."""
MOST_CALLS = 1 << 16
"""Calls that a replica or an ingress may have at once: their queues are those of the engine and of the HTTP routes."""
DRAIN_LOOK_SECONDS = 0.5
START_ATTEMPTS = 3
HEALTH_SECONDS = 2.0
"""Seconds between two checks that a replica still has an engine. Ray replaces it after three that fail."""
UPDATE_SECONDS = 3600.0
"""Seconds that a replica has to finish its requests when an update or the autoscaler replaces it."""
QUEUED_TOKENS, DOWN_SECONDS = 8192, 120.0
UP_SECONDS, REPORT_SECONDS = 4.0, 2.0
"""Seconds for which more replicas must be wanted, and seconds between two reports of a replica to Ray."""


def build_app(args: Mapping[str, Any]) -> Any:
    """Return the application (`ray.serve.Application`).

    Args:
        args: options of `sluice fleet` by their names with underscores, as `model`, `replicas` and `max_total_tokens`.

    Raises:
        ConfigError: an option that there is not, that a fleet does not take, or a bad value.
    """
    ray, _ = import_ray()
    plan = FleetPlan.of(given_of(args), FACTORY)
    if plan.fleet.address is not None:
        raise ConfigError("address is an option of `sluice fleet`: Ray has the cluster that this application runs on")
    total = ray.cluster_resources() if ray.is_initialized() else {"CPU": os.cpu_count() or 1}
    return application(placed(plan, total), has_gpus=total.get("GPU", 0) > 0)


def import_ray() -> tuple[Any, Any]:
    """Return the modules `ray` and `ray.serve`.

    Raises:
        ConfigError: they are not installed.
    """
    try:
        return importlib.import_module("ray"), importlib.import_module("ray.serve")
    except ImportError as error:
        raise ConfigError(f"sluice fleet needs Ray Serve, which is not installed ({error}): {INSTALL}") from error


def placed(plan: FleetPlan, total: Mapping[str, float]) -> FleetPlan:
    """Return the plan with the cores and threads of each rank, by what a cluster has."""
    most = plan.fleet.max_replicas or plan.fleet.replicas
    cores = cores_of_rank(plan.engine, total.get("CPU", 1), most + (plan.fleet.prefill_replicas or 0))
    return replace(plan, engine=with_threads(plan.engine, cores), cores=cores)


def application(plan: FleetPlan, *, has_gpus: bool) -> Any:
    """Return the application of a plan with its threads (`placed`)."""
    from sluice.fleet.deployments import Ingress, Replica

    _, serve = import_ray()
    config = importlib.import_module("ray.serve.config")
    takes = resources_of_replica(plan.engine, plan.cores, has_gpus=has_gpus)
    is_stock = plan.fleet.router == RAY_PREFIX
    router = config.RequestRouterConfig(
        request_router_class=AFFINITY if is_stock else ROUTER,
        request_router_kwargs={"do_eviction": True} if is_stock else {},
    )
    common = {
        "max_ongoing_requests": MOST_CALLS,
        "graceful_shutdown_timeout_s": UPDATE_SECONDS,
        "graceful_shutdown_wait_loop_s": DRAIN_LOOK_SECONDS,
        "max_constructor_retry_count": START_ATTEMPTS,
    }
    replica = serve.deployment(
        Replica,
        name=REPLICA,
        **numbers(plan.fleet),
        ray_actor_options={"num_cpus": takes["CPU"], "num_gpus": takes.get("GPU", 0)},
        request_router_config=router,
        health_check_period_s=HEALTH_SECONDS,
        **common,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=plan.fleet.ingresses,
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    version, keyless = uuid.uuid4().hex, without_keys(plan)
    bound = [replica.bind(keyless, version)]
    if plan.fleet.prefill_replicas is not None:
        prefill = replica.options(name=PREFILL, num_replicas=plan.fleet.prefill_replicas, autoscaling_config=None)
        bound.append(prefill.bind(keyless, version, True))
    return ingress.bind(plan, version, *bound)


def without_keys(plan: FleetPlan) -> FleetPlan:
    """Return the plan as the replicas get it: the ingress alone checks API keys."""
    return replace(plan, server=replace(plan.server, api_key=None, api_key_file=None))


def numbers(fleet: FleetOptions) -> dict[str, Any]:
    """Return how many replicas there are, as Ray Serve takes it."""
    if fleet.max_replicas is None:
        return {"num_replicas": fleet.replicas}
    rules = {
        "least": fleet.replicas,
        "most": fleet.max_replicas,
        "queued_tokens": fleet.scale_queued_tokens or QUEUED_TOKENS,
    }
    down = fleet.scale_down_seconds
    scaling = {
        "min_replicas": fleet.replicas,
        "max_replicas": fleet.max_replicas,
        "upscale_delay_s": UP_SECONDS,
        "downscale_delay_s": DOWN_SECONDS if down is None else down,
        "metrics_interval_s": REPORT_SECONDS,
        "look_back_period_s": 2 * REPORT_SECONDS,
        "policy": {"policy_function": "sluice.fleet.scaling:ScalingPolicy", "policy_kwargs": rules},
    }
    return {"autoscaling_config": scaling}
