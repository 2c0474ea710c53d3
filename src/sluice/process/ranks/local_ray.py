"""A cluster of Ray on this machine alone: its ports run what they are told, and are open to this machine only."""

from __future__ import annotations

import importlib
import logging
from typing import Any

LOGGER = logging.getLogger("sluice.ray")
LOCAL = "127.0.0.1"


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
