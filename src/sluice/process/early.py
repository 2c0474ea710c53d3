"""EarlyEngine: the process of a server's first engine, started while the server still imports its own modules.

Both take most of a second: the engine imports torch meanwhile. It is told its folder in a line on its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

EARLY = "--early"
"""Argument instead of the folder, which then comes on standard input."""


class EarlyEngine:
    """A process that has not been given its folder yet. The caller must `close` it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process: subprocess.Popen[bytes] | None = process

    @classmethod
    def start(cls) -> EarlyEngine | None:
        """Start a process; None: the system does not give what it needs, and will be asked again."""
        try:
            return cls(
                subprocess.Popen(
                    engine_command(EARLY),
                    stdin=subprocess.PIPE,
                    stdout=sys.stderr.fileno(),
                    start_new_session=True,
                )
            )
        except OSError:
            return None

    def take(self, folder: Path) -> subprocess.Popen[bytes] | None:
        """Tell the process its folder, and return it; None: it has ended, or was taken. The caller owns it then."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        try:
            process.stdin.write(f"{folder}\n".encode())
            process.stdin.flush()
        except OSError:
            _end(process)
            return None
        return process

    def close(self) -> None:
        """End the process unless it was taken."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def engine_command(place: str) -> list[str]:
    """Return the command of an engine's process.

    Args:
        place: its folder, or `EARLY`.
    """
    # -P: modules never come from the working directory, which may be a checkpoint.
    return [sys.executable, "-P", "-m", "sluice.process.engine_process", place]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
