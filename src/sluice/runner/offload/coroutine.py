"""A function that can be put down in the middle, wherever it is.

The forward of a offloaded chunk may take many steps, and models are plain functions, layer after layer. So it runs in
another thread, which computes only while somebody resumes it: the two are never at work at the same time, and nothing
has to be locked. It is one thread for all chunks, as a new one would have to gather threads for its products anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from sluice.device.background import Background

T = TypeVar("T")
UNWINDING = 5.0
"""Seconds that a cancelled call may take to let go of what it holds: one that is in the middle of something ends it."""


class Cancelled(BaseException):
    """Raised inside a function that nobody will resume, so that it lets go of what it holds."""


class Coroutine(Generic[T]):
    """A call of `body` that pauses where `body` asks for it.

    Args:
        body: called with the function that pauses it.
        thread: runs it, and nothing else until it is over.
    """

    def __init__(self, body: Callable[[Callable[[], None]], T], thread: Background) -> None:
        self._body = body
        self._thread = thread
        self._future: Future[None] | None = None
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._is_cancelled = False
        self.is_over = False

    def resume(self, *, inline: bool = False) -> None:
        """Let it run until it pauses or ends.

        Args:
            inline: it will not pause: no thread is needed.

        Raises:
            BaseException: whatever ended it.
        """
        assert not self.is_over, "a call that is over cannot go on"
        if inline:
            self.is_over = True
            self._result.append(self._body(may_not_pause))
            return
        if self._future is None:
            self._future = self._thread.submit(self._run)
        else:
            self._go.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    @property
    def has_begun(self) -> bool:
        """It was resumed once at least."""
        return self._future is not None or self.is_over

    @property
    def result(self) -> T:
        """What `body` returned, once it is over."""
        (result,) = self._result
        return result

    def cancel(self) -> None:
        """Unwind it, wherever it paused, in `UNWINDING` at most. Twice is once.

        A call may be in the middle of something if who resumed it was interrupted: it unwinds where it pauses next.
        What it raises then is nobody's.
        """
        if self._future is None or self.is_over:
            self.is_over = True
            return
        self._is_cancelled = True
        self._go.release()
        wait([self._future], UNWINDING)

    def _run(self) -> None:
        try:
            self._result.append(self._body(self._pause))
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            self._back.release()

    def _pause(self) -> None:
        self._back.release()
        self._go.acquire()
        if self._is_cancelled:
            raise Cancelled


def may_not_pause() -> None:
    """In the place of the function that pauses a call, where there is none."""
    raise AssertionError("a call that was to run through pauses")
