"""Runs a server on this machine while it is measured."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.environment import SetupError
from benchmarks.peers.peer import Command

START_SECONDS = 900.0
"""Seconds a server has to start: some engines compile their model."""
STOP_SECONDS = 30.0
TAIL = 2000
"""Number of the log's last characters in an error."""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@contextmanager
def serving(command: Command, port: int, log: Path) -> Iterator[None]:
    """Start the server, wait until it lists its models, and end it and its children afterwards.

    Raises:
        SetupError: the server ends, or lists no model in time. The message holds the end of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.arguments,
            env=os.environ | command.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, port, log)
            yield
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SetupError(f"the server ended with {process.returncode}; {log} ends with:\n{_tail(log)}")
        if _lists_models(port):
            return
        time.sleep(0.5)
    raise SetupError(f"the server does not answer after {START_SECONDS:.0f} s; {log} ends with:\n{_tail(log)}")


def _lists_models(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        # llama.cpp lists its model while it still loads it; /health reports when it is ready.
        for path in ("/health", "/v1/models"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                return False
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's process group: a child that lives on would hold cores and memory."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
