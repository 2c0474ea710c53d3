"""A thread that notices when the event loop is blocked, and records for how long and by what.

The loop is where all connections are served: while one callback runs, no token is sent and no health check is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from sluice.process.activity import queued_seconds
from sluice.process.log_limiter import LogLimiter

LOGGER = logging.getLogger("sluice.server")
LIMIT_SECONDS = 0.1
"""A pause of the loop that is longer is reported."""
LOOK_SECONDS = 0.02
"""Time between two probes of the loop; a pause is measured with this error."""
PACKAGE = __name__.partition(".")[0]
LOG_SECONDS = 10.0
"""Time between two messages."""
INNERMOST, SHOWN = 2, 6
"""Calls that are shown: the innermost ones of any package, and the innermost ones of this package."""
LOOP_WAITS = frozenset({"select"})
"""Innermost function of a loop that waits for events."""
THREAD_WAITS = LOOP_WAITS | {"wait", "poll", "_worker", "_do_waitpid"}
"""Innermost functions of other threads that wait."""

IDLE_SHARE = 0.1
"""Share of a pause for which a process that does nothing may use the processor."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which the event loop ran no other callback."""

    seconds: float
    cpu_seconds: float
    """Processor time of this process in it, all threads together."""
    queued_seconds: float
    """Time in it for which the loop's thread waited for a processor, because other threads or processes had them."""
    running: str
    """What ran: calls from the innermost outwards, as `module.function:line`. Empty if it ended before it was seen."""


class LoopWatchdog:
    """Probes an event loop from a thread, and reports pauses in the loop afterwards.

    A probe is a callback that the loop runs at once when it is free. While it does not run it, the stack of the loop's
    thread is sampled. If another thread keeps the interpreter's lock, the stacks of the other threads are sampled.

    Time in which this thread was not run either, although the process hardly used the processor, is not counted: the
    machine was suspended or busy with other processes. Nor is a pause in which no thread of the process ran.

    Args:
        on_pause: called in the loop after each pause.
        loop: None is the running one.
        clock: returns seconds.
        cpu_clock: returns the processor seconds of this process.
        queue_clock: returns the seconds for which the loop's thread has waited for a processor; None reads them from
            the kernel.
    """

    def __init__(
        self,
        on_pause: Callable[[Pause], None],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        clock: Clock = time.monotonic,
        cpu_clock: Clock = time.process_time,
        queue_clock: Clock | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._on_pause = on_pause
        self._clock, self._cpu_clock = clock, cpu_clock
        self._queue_clock = queue_clock or partial(queued_seconds, Path(f"/proc/self/task/{threading.get_native_id()}"))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch; call this in the loop's thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            pause = self._probe()
            if pause is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_pause, pause)

    def _probe(self) -> Pause | None:
        """Return the pause in which the loop is, when it is over; None if it runs."""
        has_run = threading.Event()
        queued_before = self._queue_clock()
        began = looked = self._clock()
        cpu_began = cpu_looked = self._cpu_clock()
        self._loop.call_soon_threadsafe(has_run.set)
        absent, seconds = 0.0, 0.0
        samples: Counter[str] = Counter()
        while not self._closed.is_set() and not has_run.is_set():
            has_run.wait(LOOK_SECONDS)
            now, cpu = self._clock(), self._cpu_clock()
            late = now - looked - LOOK_SECONDS
            if late > LOOK_SECONDS and cpu - cpu_looked < late / 2:
                absent += late
            looked, cpu_looked = now, cpu
            seconds = now - began - absent
            if seconds >= LIMIT_SECONDS:
                samples[running_calls(self._loop_thread)] += 1
        was_idle = set(samples) == {""} and cpu_looked - cpu_began < IDLE_SHARE * seconds
        if seconds < LIMIT_SECONDS or was_idle:
            return None
        del samples[""]
        running = samples.most_common(1)[0][0] if samples else ""
        return Pause(seconds, cpu_looked - cpu_began, self._queue_clock() - queued_before, running)


def running_calls(loop_thread: int) -> str:
    """Return the calls that the loop's thread is in; if it only waits, those of the other threads that do not.

    Args:
        loop_thread: its identity, as `threading.get_ident` returns it.
    """
    frames = sys._current_frames()
    own = frames.pop(loop_thread, None)
    frames.pop(threading.get_ident(), None)
    if own is not None and own.f_code.co_name not in LOOP_WAITS:
        return _calls(own)
    others = [frame for frame in frames.values() if frame.f_code.co_name not in THREAD_WAITS]
    return "; ".join(f"in another thread: {_calls(frame)}" for frame in others)


def _calls(frame: FrameType) -> str:
    return " < ".join(itertools.islice(_named(frame), SHOWN))


def _named(innermost: FrameType) -> Iterator[str]:
    """Yield the innermost calls, and beyond them those of this package: the others are middleware."""
    frame: FrameType | None = innermost
    for depth in itertools.count():
        if frame is None:
            return
        module = frame.f_globals.get("__name__", "?")
        if depth < INNERMOST or module.partition(".")[0] == PACKAGE:
            yield f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
        frame = frame.f_back


class PauseLog:
    """Counts pauses, and logs them, at most one message in `LOG_SECONDS`.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._limiter = LogLimiter(LOG_SECONDS, clock)
        self.count = 0
        """Pauses so far."""
        self.seconds = 0.0
        """Seconds of all pauses."""

    def add(self, pause: Pause) -> None:
        """Count a pause."""
        self.count += 1
        self.seconds += pause.seconds
        count = self._limiter.count()
        if not count:
            return
        others = f"; {count - 1} pauses were not logged since the last message" if count > 1 else ""
        if pause.queued_seconds >= pause.seconds / 2:
            LOGGER.warning(
                "this machine is busy: the event loop stood still for %.3f s, and waited %.3f s for a processor%s",
                pause.seconds,
                pause.queued_seconds,
                others,
            )
            return
        LOGGER.warning(
            "the event loop was blocked for %.3f s (%.3f s of processor time, %.3f s waiting for a processor): %s%s",
            pause.seconds,
            pause.cpu_seconds,
            pause.queued_seconds,
            pause.running or "the call ended before it was seen",
            others,
        )
