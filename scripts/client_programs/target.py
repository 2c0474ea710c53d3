"""The server of the clients, and how to run a command."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "clients"
PROMPT = "What is a sluice?"
MAX_TOKENS = 24


@dataclass(frozen=True)
class Target:
    """The server of the clients."""

    url: str
    key: str

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Send a request without a client."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            with urlopen(Request(self.url + path, data, headers, method=method), timeout=60) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def started(command: Sequence[str]) -> Iterator[None]:
    """Start a server, and wait until it says how to reach it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while "curl" not in (line := process.stdout.readline()):
                assert line or process.poll() is None, "the server ended"
            yield
        finally:
            process.terminate()


@contextmanager
def server(model: Path | None = None, name: str = "sluice") -> Iterator[Target]:
    """Serve a model, or the default one, with a key of this run."""
    port, key = free_port(), secrets.token_hex(8)
    command = [sys.executable, "-m", "sluice", "serve", *([] if model is None else [str(model)])]
    command += ["--port", str(port), "--served-model-name", name, "--api-key", key]
    command += ["--override-generation-config", '{"max_new_tokens": 512}']  # for clients that ask for no limit
    with started(command):
        yield Target(f"http://127.0.0.1:{port}", key)


def output_of(*command: str, cwd: Path | None = None, **environment: str) -> str:
    """Return the output of a command, which must succeed."""
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd, env=settings)
    assert done.returncode == 0, f"{shlex.join(command)[:300]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
