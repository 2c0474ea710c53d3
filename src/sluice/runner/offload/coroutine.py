"""Coroutine: a call of a plain function that can pause anywhere and be resumed later.

The forward of an offloaded chunk may take many steps, and models are plain functions, layer after layer. So it runs in
another thread, which computes only while it is resumed: the two threads are never at work at the same time, and nothing
has to be locked. One thread serves all chunks, since torch starts worker threads anew for every thread that computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from sluice.device.background import Background

T = TypeVar("T")
UNWINDING = 5.0
"""Seconds that a cancelled call may take to unwind: one that is at work continues to where it pauses next."""


class Cancelled(BaseException):
    """Raised inside a call that will not be resumed, so that it gives up what it holds."""


class Coroutine(Generic[T]):
    """A call of `body` that pauses where `body` wants to.

    Args:
        body: called with the function that pauses the call.
        thread: runs the call, and nothing else until it is over.
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
        """Run the call until it pauses or ends.

        Args:
            inline: it will not pause, so it runs in this thread.

        Raises:
            BaseException: the error that ended the call.
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
        """Whether the call was resumed at least once."""
        return self._future is not None or self.is_over

    @property
    def result(self) -> T:
        """The value that `body` returned, once the call is over."""
        (result,) = self._result
        return result

    def cancel(self) -> None:
        """Unwind the call where it paused, within `UNWINDING` seconds. May be called again.

        If `resume` was interrupted, the call may still be at work: it unwinds where it pauses next. Errors that it
        raises then are dropped.
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
        except BaseException as error:  # noqa: BLE001 - raised again where the thread is resumed
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
    """Stand in for the function that pauses a call which runs inline."""
    raise AssertionError("a call that runs inline cannot pause")
