"""Calls made one after the other by a thread of their own, which nothing waits for: not even the interpreter's end.

`concurrent.futures` joins its threads when the interpreter ends, so that a read from a disk that hangs would keep the
process alive.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

Calls = queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None]


class Background:
    """One thread and its queue. The thread ends with this object, however it goes, once the call under way is over.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: Calls = queue.SimpleQueue()
        self._end = weakref.finalize(self, self._calls.put, None)
        self._thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue a call. What it raises is the future's. Not after `close`."""
        future: Future[None] = Future()
        self._calls.put((future, call))
        return future

    def close(self, seconds: float) -> None:
        """Cancel what waits, and wait so long for the call under way, at most. Twice is once."""
        with suppress(queue.Empty):
            while True:
                waiting = self._calls.get_nowait()
                if waiting is not None:
                    waiting[0].cancel()
        self._end()
        self._calls.put(None)  # `_end` puts it once, and the line above may have taken it
        self._thread.join(seconds)


def _work(calls: Calls) -> None:
    while (each := calls.get()) is not None:
        _make(*each)
        del each  # or it would be held while the next is waited for


def _make(future: Future[None], call: Callable[[], None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
