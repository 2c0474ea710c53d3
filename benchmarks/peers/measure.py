"""Measures an engine, whether it is a server or a library."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import HOME, ROOT
from benchmarks.peers.llama_cpp_server import LlamaCpp
from benchmarks.peers.neighbour import neighbour
from benchmarks.peers.openvino_batching import OpenVINO
from benchmarks.peers.peer import InProcessPeer, Job, Peer, ServerPeer, Settings
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


def peer_named(name: str) -> Peer:
    """Return the peer of this name, one of `PEERS`."""
    return SERVERS[name] if name in SERVERS else IN_PROCESS[name]


def measure(name: str, settings: Settings, given: dict[str, Any], out: Path) -> int:
    """Measure one workload, as `measure_jobs`."""
    return measure_jobs(name, settings, [Job(given, out)])


def measure_jobs(name: str, settings: Settings, jobs: Sequence[Job]) -> int:
    """Start a peer that is set up and prepared, send the workloads one after the other, stop it, write the results.

    Args:
        name: one of `PEERS`.

    Returns:
        The first exit status of `sluice bench` that is not 0; later workloads were not measured.

    Raises:
        SetupError: the server does not start.
        ConfigError, BenchError: as `sluice bench`.
    """
    return (_server if name in SERVERS else _in_process)(name, settings, jobs)


def _server(name: str, settings: Settings, jobs: Sequence[Job]) -> int:
    peer = SERVERS[name]
    port = free_port()
    command = peer.serve(settings, port)
    described = _described(name, settings, peer.versions()) | {
        "command": [_portable(part) for part in command.arguments],
        "environment": {key: _portable(value) for key, value in command.environment.items()},
    }
    with serving(command, port, HOME / "logs" / f"{name}.log"):
        for job in jobs:
            with neighbour(job.busy_processor):
                result = asyncio.run(measure_server(f"http://127.0.0.1:{port}", checked_options(dict(job.given))))
            target = result.target | {"model": settings.checkpoint.resolve().name, "peer": described}
            result = replace(result, target=target, versions=result.versions | peer.versions())
            write_result(result, job.out)
            if (status := verdict(result)) != 0:
                return status
    return 0


def _in_process(name: str, settings: Settings, jobs: Sequence[Job]) -> int:
    peer = IN_PROCESS[name]
    environment = dict(peer.environment(settings))
    described = _described(name, settings, peer.versions()) | {"environment": environment}
    raw = asdict(settings) | {"checkpoint": str(settings.checkpoint.resolve())}
    sent_jobs = [asdict(job) | {"out": str(job.out.resolve())} for job in jobs]
    request = {"settings": raw, "peer": described, "jobs": sent_jobs}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(request, file)
        file.flush()
        paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "src"))
        return subprocess.run(
            [str(peer.interpreter()), "-m", peer.module, file.name],
            check=False,
            cwd=ROOT,
            env=os.environ | environment | {"PYTHONPATH": paths},
        ).returncode


def _described(name: str, settings: Settings, versions: dict[str, str]) -> dict[str, Any]:
    shown = asdict(settings) | {"checkpoint": settings.checkpoint.resolve().name}
    return {"name": name, "versions": versions, "settings": shown}


def _portable(text: str) -> str:
    """Return the text without the repository's path on this machine."""
    return text.replace(f"{ROOT}{os.sep}", "")
