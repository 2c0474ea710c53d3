"""Measures an engine, whether it is a server or a library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.child_process import child
from benchmarks.peers.environment import HOME, ROOT
from benchmarks.peers.llama_cpp_server import LlamaCpp
from benchmarks.peers.neighbour import neighbour
from benchmarks.peers.openvino_batching import OpenVINO
from benchmarks.peers.peer import Command, InProcessPeer, Job, Peer, ServerPeer, Settings
from benchmarks.peers.server_process import free_port, serving
from benchmarks.peers.sluice_server import Sluice
from benchmarks.peers.transformers_batching import Transformers
from benchmarks.peers.vllm_server import VLLM
from sluice.bench.command import checked_options, verdict
from sluice.bench.measure import measure_server
from sluice.bench.results import write_result

SERVERS: dict[str, ServerPeer] = {peer.name: peer for peer in (Sluice(), VLLM(), LlamaCpp())}
IN_PROCESS: dict[str, InProcessPeer] = {peer.name: peer for peer in (OpenVINO(), Transformers())}
PEERS = (*SERVERS, *IN_PROCESS)
Send = Callable[[Job], int]
"""Sends a workload to a running engine, writes the result and returns the exit status of `sluice bench`."""


def peer_named(name: str) -> Peer:
    """Return the peer of this name, one of `PEERS`."""
    return SERVERS[name] if name in SERVERS else IN_PROCESS[name]


def measure(name: str, settings: Settings, given: dict[str, Any], out: Path) -> int:
    """Start a peer that is set up and prepared, send one workload, stop the peer.

    Returns:
        The exit status of `sluice bench`.

    Raises:
        SetupError: the peer does not start.
        ConfigError, BenchError: as `sluice bench`.
    """
    with running(name, settings) as send:
        return send(Job(given, out))


def running(name: str, settings: Settings) -> AbstractContextManager[Send]:
    """Start a peer that is set up and prepared, and stop it at the end. Any number of workloads can be sent to it.

    Args:
        name: one of `PEERS`.

    Raises:
        SetupError: the peer does not start.
    """
    return (_server if name in SERVERS else _in_process)(name, settings)


@contextmanager
def _server(name: str, settings: Settings) -> Iterator[Send]:
    peer = SERVERS[name]
    port = free_port()
    command = peer.serve(settings, port)
    described = _described(name, settings, peer.versions()) | {
        "command": [_portable(part) for part in command.arguments],
        "environment": {key: _portable(value) for key, value in command.environment.items()},
    }

    def send(job: Job) -> int:
        with neighbour(job.busy_processor):
            result = asyncio.run(measure_server(f"http://127.0.0.1:{port}", checked_options(dict(job.given))))
        target = result.target | {"model": settings.checkpoint.resolve().name, "peer": described}
        result = replace(result, target=target, versions=result.versions | peer.versions())
        write_result(result, job.out)
        return verdict(result)

    with serving(command, port, HOME / "logs" / f"{name}-{settings.weights}.log"):
        yield send


@contextmanager
def _in_process(name: str, settings: Settings) -> Iterator[Send]:
    peer = IN_PROCESS[name]
    environment = dict(peer.environment(settings))
    described = _described(name, settings, peer.versions()) | {"environment": environment}
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "src"))
    command = Command([str(peer.interpreter()), "-m", peer.module], environment | {"PYTHONPATH": paths})
    with child(command, {"settings": _plain(settings), "peer": described}) as ask:
        yield lambda job: ask(asdict(job) | {"out": str(job.out.resolve())})


def _plain(settings: Settings) -> dict[str, Any]:
    return asdict(settings) | {"checkpoint": str(settings.checkpoint.resolve())}


def _described(name: str, settings: Settings, versions: dict[str, str]) -> dict[str, Any]:
    shown = asdict(settings) | {"checkpoint": settings.checkpoint.resolve().name}
    return {"name": name, "versions": versions, "settings": shown}


def _portable(text: str) -> str:
    """Return the text without the repository's path on this machine."""
    return text.replace(f"{ROOT}{os.sep}", "")
