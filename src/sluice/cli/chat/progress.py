"""What a terminal shows while there is nothing to read yet. It is drawn on standard error, and removed again."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

PATIENCE = 0.5
"""Seconds before anything is shown: a line that comes and goes at once is a flicker."""


class PromptBar:
    """A bar of the prompt's tokens that are read. Without a terminal it shows nothing."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def show(self, done: int, total: int) -> None:
        """Show that so many tokens of all are read."""
        if self._bar is None:
            self._bar = tqdm(
                total=total,
                initial=done,
                desc="reading the prompt",
                unit="tok",
                leave=False,
                delay=PATIENCE,
                disable=None,
            )
        else:
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Waiting:
    """The seconds for which a server has not answered. Without a terminal it shows nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the line. A second call does nothing."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _draw(self) -> None:
        start = time.monotonic()
        if self._over.wait(PATIENCE):
            return
        while not self._over.wait(0.1):
            sys.stderr.write(f"\r{self._what}: {time.monotonic() - start:.1f} s")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
