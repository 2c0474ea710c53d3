"""FleetCluster: a cluster of Ray, as `sluice fleet` uses it."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from sluice.config import ConfigError, ServerConfig, names_ray_auth_mode
from sluice.fleet.resources import Resources
from sluice.process.ranks.ray_ranks import start_local_ray

APP = "sluice"
"""Name of the application: another one of this name takes its place."""
OBJECT_STORE_BYTES = 128 << 20
"""Prompts and answers pass through it only if they are large."""
ASK_SECONDS = 60.0
REACH_SECONDS = 5.0
AUTO = "auto"
"""Address of the cluster that this machine belongs to."""


class FleetCluster:
    """A cluster that runs a fleet.

    Args:
        address: of a cluster; None: a new one of this machine.

    Raises:
        ConfigError: there is none at the address.
    """

    def __init__(self, address: str | None) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._serve: Any = importlib.import_module("ray.serve")
        self._is_own = address is None
        try:
            if address is None:
                start_local_ray(OBJECT_STORE_BYTES, logging_level="WARNING")
            else:
                check_reachable(address)
                self._connect(address)
        except Exception as error:  # Ray raises that itself when its processes do not start in time
            where = "on this machine" if address is None else f"at --address {address}"
            raise ConfigError(f"Ray cannot be reached {where}: {error}") from error

    def _connect(self, address: str) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except Exception as error:
            # To an address that is named, Ray sends its token only if it is told to, and does not say so.
            if address == AUTO or names_ray_auth_mode():
                raise
            raise ConnectionError(f"{error}; if that cluster asks for Ray's token, set RAY_AUTH_MODE=token") from error

    def total(self) -> Mapping[str, float]:
        """Return the resources of all machines."""
        resources: Mapping[str, float] = self._ray.cluster_resources()
        return resources

    def machines(self) -> list[Resources]:
        """Return what is free on each machine. What a fleet has that is to be updated counts as free."""
        nodes = {each["NodeID"]: each["Resources"] for each in self._ray.nodes() if each["Alive"]}
        if self._has_fleet():
            return list(nodes.values())
        state = importlib.import_module("ray._private.state")
        free: Mapping[str, Resources] = state.available_resources_per_node()
        return [free.get(node, {}) for node in nodes]

    def deploy(self, application: Any, server: ServerConfig) -> None:
        """Start an application, or update the one that runs, and wait until it serves.

        Raises:
            ConfigError: Ray Serve runs already, with another address.
            RuntimeError: the application cannot be started.
        """
        logging = {"log_level": "WARNING", "enable_access_log": False}
        self._serve.start(
            proxy_location="EveryNode",
            http_options={
                "host": server.host,
                "port": server.port,
                "ssl_certfile": server.ssl_certfile,
                "ssl_keyfile": server.ssl_keyfile,
            },
            logging_config=logging,
        )
        if (found := self.http_address()) != (server.host, server.port):
            raise ConfigError(
                f"Ray Serve listens on {found[0]}:{found[1]} already, and not on {server.host}:{server.port}: give"
                f" --host {found[0]} --port {found[1]}, or end what runs there with `serve shutdown`"
            )
        self._serve.run(application, name=APP, route_prefix="/", logging_config=logging)

    def http_address(self) -> tuple[str, int]:
        """Return host and port of the proxies."""
        options = importlib.import_module("ray.serve.context")._get_global_client().http_config
        return options.host, options.port

    def introduction(self, deployment: str) -> bytes:
        """Return the `Ready` of a replica."""
        handle = self._serve.get_deployment_handle(deployment, APP)
        _, ready = handle.introduce.remote(b"").result(timeout_s=ASK_SECONDS)
        return bytes(ready)

    def delete(self, seconds: float) -> None:
        """End the application when what runs has ended, or after some seconds."""
        deleting = threading.Thread(target=self._serve.delete, args=(APP,), daemon=True)
        deleting.start()
        deleting.join(seconds)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._is_own:
            self._serve.shutdown()
        self._ray.shutdown()

    def _has_fleet(self) -> bool:
        return APP in self._serve.status().applications


def check_reachable(address: str) -> None:
    """Check that something listens at an address of the form HOST:PORT: Ray would wait for minutes.

    Raises:
        OSError: nothing does.
        ValueError: it has another form, and is not "auto".
    """
    if address == AUTO:
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isascii() and port.isdecimal()):
        raise ValueError("it must be auto or HOST:PORT, as 10.0.0.1:6379")
    socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
