"""A process for work that may run forever or take all memory: started, asked over a socket, and killed.

Its side of the socket is `child_side`. A question and its answer are one frame each (`types.framing`).
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

from sluice.types.framing import FrameReader, send_frame

END_SECONDS = 1.0
"""Time for a process that closed its socket to end."""
OUT_OF_MEMORY = 3
"""Exit status of a process that exceeded its memory."""


class ChildProcess:
    """A process, and the socket to it. Only `kill` may be called by several threads.

    Args:
        module: that it runs.
    """

    def __init__(self, module: str) -> None:
        """
        Raises:
            OSError: it cannot be started.
        """
        self._socket, theirs = socket.socketpair()
        self._answers = FrameReader(0)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],  # -P: as for the engine
                    stdin=theirs.fileno(),  # its end shows the process that the server has ended
                    stdout=theirs.fileno(),
                    start_new_session=True,  # Ctrl-C in a terminal reaches only the server
                )
            except BaseException:
                self._socket.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def exchange(self, frame: bytes, deadline: float, longest: int) -> bytes:
        """Send a frame and return the answer.

        Args:
            deadline: by the monotonic clock.
            longest: bytes that the answer may have.

        Raises:
            OSError, EOFError: there is no answer, or too long a one (`TooLong`). The process is of no more use.
        """
        self._wait_until(deadline)
        send_frame(self._socket, frame)
        self._answers.longest = longest
        while (answer := self._answers.take()) is None:
            self._wait_until(deadline)
            if not (data := self._socket.recv(1 << 18)):
                raise EOFError("it ended")
            self._answers.add(data)
        return answer

    def _wait_until(self, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))

    def status(self) -> int | None:
        """Return the exit status, as `Popen.returncode`; None if the process has not ended."""
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


def was_killed(status: int | None) -> bool:
    """Return whether a process that gave no answer has not ended by itself, or by its limits."""
    return status in (None, -signal.SIGKILL, -signal.SIGTERM)


def end_of(status: int | None, seconds: float, memory_mb: int) -> str:
    """Return how work ended its process, as the end of a sentence.

    Args:
        seconds, memory_mb: its limits, as in `child_side`.
    """
    if status == OUT_OF_MEMORY:
        return f"takes more than {memory_mb} MiB of memory"
    if status == -signal.SIGPROF:
        return f"runs for more than {seconds:g} seconds"
    return f"ended its process: status {status}"
