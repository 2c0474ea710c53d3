"""Ctrl-C: the first one stops the answer, a second one ends the program."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopper:
    """Keeps whether the user asked for the end of an answer."""

    def __init__(self) -> None:
        self.is_asked = False
        self._wake: Callable[[], object] | None = None

    def ask(self) -> None:
        """Ask for the end of the answer.

        Raises:
            KeyboardInterrupt: it was asked for before.
        """
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        if self._wake is not None:
            self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` if the end is asked for meanwhile, or was before: it ends the wait of what reads from a
        connection."""
        self._wake = wake
        try:
            if self.is_asked:
                wake()
            yield
        finally:
            self._wake = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let Ctrl-C ask for the end, for one answer. Only the main thread may do that."""
        self.is_asked = False
        before = signal.signal(signal.SIGINT, lambda *_: self.ask())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
