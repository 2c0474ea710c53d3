"""`sluice serve` as a child process over the shadow model, for tests that use it from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenizer_makers import byte_tokenizer

TESTS = Path(__file__).parent
PATIENCE = 40.0
"""Seconds after which something hangs, on a machine however busy. Every time that a test forbids is longer."""
PAUSES = ("the event loop was blocked", "the event loop stood still")
SHADOW = """
import gc
import json
import sys
from sluice.config import EngineConfig, ServerConfig
from sluice.http.serve import run

model, factory, options = sys.argv[1:]
status = run(ServerConfig(**json.loads(options)), EngineConfig.from_options({"model": model}), factory=factory)
print(gc.get_freeze_count(), "objects were left alone")
sys.exit(status)
"""


@contextmanager
def server(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server process with its output in pipes; ended by force if the test did not end it."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def shadow(port: int, folder: Path, factory: str = "shadow_engine:build", **options: object) -> tuple[str, ...]:
    """The command of a server over the shadow model, in a process of its own, with these options of the server."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return ("-c", SHADOW, str(folder), factory, json.dumps({"port": port, **options}))


def announced(process: subprocess.Popen[str]) -> str:
    """The command that a server prints once it can be used."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith("curl"):
            return line.strip()
    assert process.stderr is not None
    pytest.fail(f"the server ended: {process.stderr.read()}")


def errors_of(process: subprocess.Popen[str]) -> str:
    """What a server wrote to stderr until its end, without the pauses of its event loop, which a busy machine makes."""
    _, errors = process.communicate(timeout=PATIENCE)
    return "".join(line for line in errors.splitlines(keepends=True) if not any(told in line for told in PAUSES))
