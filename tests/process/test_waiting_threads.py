"""torch's threads sleep while they wait: on a shared machine, those that compute instead slow each other down."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sluice.process.early import EARLY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the OpenMP of other systems prints other lines")
COMMANDS = {"the command line": ("sluice", "explain"), "an engine": ("sluice.process.engine_process", EARLY)}


def policy(command: tuple[str, ...], **environment: str) -> str:
    """Return how threads wait in a process, as the OpenMP that torch loads says it."""
    given = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**given, "OMP_DISPLAY_ENV": "true", **environment},
    ) as process:
        assert process.stderr is not None
        try:
            return next(line.split("'")[1] for line in process.stderr if "OMP_WAIT_POLICY" in line)
        finally:
            process.kill()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_they_sleep(command: tuple[str, ...]) -> None:
    """Beside a busy process, a token of the default model took up to 3 s without compiled kernels, instead of 0.1."""
    assert policy(command) == "PASSIVE"


def test_the_environment_has_the_last_word() -> None:
    assert policy(COMMANDS["an engine"], OMP_WAIT_POLICY="active") == "ACTIVE"
