"""A blocked event loop is noticed, with what ran; a suspended machine is none. All times are those of fake clocks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from itertools import count

import pytest

from serving import run
from sluice.http.observe.loop_watchdog import LOG_SECONDS, LoopWatchdog, Pause, PauseLog

STEP = 0.03
"""Seconds between two looks at the fake clock."""


class Clock:
    """A clock that goes on by a step at every look. At look number `looks` it calls a function, once."""

    def __init__(self, step: float, looks: int, then: Callable[[], None]) -> None:
        self.now = 0.0
        self.step = step
        self._left, self._then = looks, then

    def __call__(self) -> float:
        self.now += self.step
        self._left -= 1
        if self._left == 0:
            self._then()
        return self.now


def block_until(lock: threading.Lock) -> None:
    """Wait in a call of C, as most of what blocks a loop is one."""
    lock.acquire()


def test_a_blocked_loop_is_reported_with_what_ran() -> None:
    """Without it an operator sees slow health checks and has nothing to look for."""

    async def test() -> None:
        lock, pauses = threading.Lock(), asyncio.Queue[Pause]()
        lock.acquire()
        clock = Clock(STEP, looks=20, then=lock.release)
        with LoopWatchdog(pauses.put_nowait, clock=clock, cpu_clock=lambda: 1.0, queue_clock=count().__next__):
            block_until(lock)
            pause = await pauses.get()
        assert pause.seconds > 0.1
        assert pause.queued_seconds == 1
        assert f"{__name__}.block_until:" in pause.running

    run(test)


def test_a_suspended_machine_is_no_pause() -> None:
    """After a laptop was closed for a night, no pause of eight hours is reported: the watchdog slept as well."""

    async def test() -> None:
        lock, pauses = threading.Lock(), asyncio.Queue[Pause]()
        lock.acquire()

        def sleep() -> None:
            clock.now += 8 * 3600.0
            lock.release()

        clock = Clock(0.0, looks=4, then=sleep)
        with LoopWatchdog(pauses.put_nowait, clock=clock, cpu_clock=lambda: 1.0):
            block_until(lock)
        await asyncio.sleep(0)
        assert pauses.empty()

    run(test)


def test_messages_are_limited_and_counts_are_not(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = PauseLog(lambda: now)
    with caplog.at_level(logging.WARNING, "sluice.server"):
        for _ in range(4):
            log.add(Pause(0.5, 0.25, 0.125, "a.b:3"))
        now += LOG_SECONDS
        log.add(Pause(0.25, 0.25, 0.0, ""))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "the event loop was blocked for 0.500 s (0.250 s of processor time, 0.125 s waiting for a processor): a.b:3"
    )
    assert second.endswith("the call ended before it was seen; 3 pauses were not logged since the last message")
    assert (log.count, log.seconds) == (5, 2.25)


def test_a_busy_machine_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """What ran when the loop got no processor is not what blocked it."""
    with caplog.at_level(logging.WARNING, "sluice.server"):
        PauseLog(lambda: 100.0).add(Pause(0.5, 0.01, 0.25, "a.b:3"))
    (record,) = caplog.records
    assert record.getMessage() == (
        "this machine is busy: the event loop stood still for 0.500 s, and waited 0.250 s for a processor"
    )
