"""`sluice fleet`: starts replicas and an ingress on a cluster of Ray, and waits for the end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from sluice.assembly.ranks import refuse_ranks
from sluice.config import ConfigError, ServerConfig
from sluice.fleet.app import REPLICA, application, import_ray, placed
from sluice.fleet.cluster import FleetCluster
from sluice.fleet.identity import Identity
from sluice.fleet.ingress import ip_address_of
from sluice.fleet.options import FleetPlan
from sluice.fleet.resources import refuse_shortage, resources_of_replica
from sluice.http.base.auth import read_keys
from sluice.http.base.chat_template_file import read_chat_template
from sluice.http.base.options import check_server, model_names
from sluice.http.base.parsers import check_parsers
from sluice.http.edge.listening import exposure_warning, listen, url_of
from sluice.http.observe.announcement import curl
from sluice.process.wire import FACTORY, Ready, decode

ROUTE = "/"


def run_fleet(given: dict[str, Any], factory: str = FACTORY) -> int:
    """Serve with a fleet. Returns the exit status.

    Without --address, until SIGINT or SIGTERM; with it, until the fleet serves: it stays in the cluster.

    Args:
        given: the flags of the command line, by name.
        factory: builds the engines of the replicas, as "module:function".

    Raises:
        ConfigError: an option that cannot be honoured: Ray is not installed, there is no cluster at the address, or it
            has no room for the replicas.
        CannotListen: the port is in use.
        RuntimeError: the replicas cannot be started.
    """
    plan = checked(FleetPlan.of(given, factory))
    if plan.fleet.address is None:
        listen(plan.server.host, plan.server.port).close()
    if (warning := open_warning(plan.server)) is not None:
        print(f"sluice: warning: {warning}", file=sys.stderr)
    with connected(plan) as cluster, stop_signals() as stopped:
        plan = placed(plan, cluster.total())
        takes = resources_of_replica(plan.engine, plan.cores, has_gpus=cluster.total().get("GPU", 0) > 0)
        refuse_shortage(takes, plan.fleet.replicas, cluster.machines(), plan.fleet.prefill_replicas or 0)
        cluster.deploy(application(plan, has_gpus="GPU" in takes), plan.server)
        print(announced(plan, cluster, url_of(*cluster.http_address())), flush=True)
        if plan.fleet.address is None:
            stopped.wait()
            cluster.delete(plan.server.drain_timeout)
    return 0


def checked(plan: FleetPlan) -> FleetPlan:
    """Return a plan whose options can be honoured, as far as this machine can tell.

    Raises:
        ConfigError: an option, by name and value.
    """
    import_ray()
    check_server(plan.server)
    refuse_ranks(plan.engine)
    read_keys(plan.server)
    read_chat_template(plan.server)
    check_parsers(plan.server)
    folder = plan.fleet.transfer_folder
    if folder is not None and plan.fleet.address is None and not Path(folder).is_dir():
        raise ConfigError(f"--transfer-folder {folder}: there is no such folder")
    return plan


def open_warning(server: ServerConfig) -> str | None:
    """Return a warning if every client that reaches a machine of the fleet can use it, else None.

    Raises:
        ConfigError: the host has no address.
    """
    try:
        address = ip_address_of(server.host)
    except OSError as error:
        raise ConfigError(f"--host {server.host} has no address that proxies could listen on: {error}") from error
    return exposure_warning(address, has_key=bool(read_keys(server)))


@contextmanager
def connected(plan: FleetPlan) -> Iterator[FleetCluster]:
    """Connect to the cluster of the options, or start one, which ends with the context."""
    with chdir("/"):  # Ray lets workers import modules from the working directory, which may be a checkpoint
        cluster = FleetCluster(plan.fleet.address)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Catch SIGINT and SIGTERM once: they set the event. A second one acts as it would without this."""
    stopped = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        stopped.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()


def announced(plan: FleetPlan, cluster: FleetCluster, url: str) -> str:
    """Return what a person who started the fleet needs to know."""
    ready = decode(cluster.introduction(REPLICA))
    assert isinstance(ready, Ready), f"not ready: {ready}"
    count, identity = plan.fleet.replicas, Identity.of(ready)
    name = model_names(plan.server, ready.model)[0]
    lines = [
        f"A fleet of {count} replica{'s' if count > 1 else ''} serves {name} at {url}/v1 (up to"
        f" {ready.limits.max_request_tokens} tokens a request).",
        f"Requests are routed by {plan.fleet.router}; the weights have the fingerprint {identity.fingerprint}.",
    ]
    if plan.fleet.address is not None:
        lines.append("It stays in the cluster. The same command updates it without losing a stream.")
    return "\n".join([*lines, "Try it:", f"  {curl(url, name, chat=True)}"])
