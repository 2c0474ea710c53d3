"""Measures the anonymous memory of a process on Linux, and its peak."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

STATUS = Path("/proc/self/status")
INTERVAL = 0.05
"""Seconds between two measurements."""


def anonymous_bytes(status: Path = STATUS) -> int:
    """Return the memory of a process that belongs to no file, `RssAnon`.

    Raises:
        ValueError: the system does not report it.
    """
    for line in status.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    raise ValueError(f"{status} has no RssAnon: it takes Linux 4.5")


class PeakMemory:
    """The largest `anonymous_bytes` of this process while the block runs, measured every 50 ms."""

    def __init__(self) -> None:
        self.peak = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous_bytes())

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self.peak = max(self.peak, anonymous_bytes())
