"""A thread that makes calls one after the other, and does not keep the process alive.

`concurrent.futures` joins its threads when the interpreter exits, so a read from a disk that hangs would keep the
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
    """A thread and its queue. The thread ends with this object, once the call in progress is over.

    Args:
        name: the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: Calls = queue.SimpleQueue()
        self._end = weakref.finalize(self, self._calls.put, None)
        self._thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue a call, unless closed. The future gets what it raises."""
        future: Future[None] = Future()
        self._calls.put((future, call))
        return future

    def close(self, seconds: float) -> None:
        """Cancel the calls that wait, and give the call in progress `seconds` to end. May be called again."""
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
    except BaseException as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)
    else:
        future.set_result(None)
