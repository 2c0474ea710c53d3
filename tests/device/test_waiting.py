"""Waiting for a device: the moment it is done, and a sign of life every second until then."""

from __future__ import annotations

import pytest

from sluice.device import queues
from sluice.device.queues import NAP_SECONDS, SPIN_SECONDS, TICK_SECONDS, wait_until


class Clock:
    """Time that passes when somebody sleeps, or asks whether it is done."""

    def __init__(self, done_at: float) -> None:
        self.now = 0.0
        self.done_at = done_at
        self.ticks: list[float] = []
        self.naps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps += seconds > 0

    def is_done(self) -> bool:
        self.now += 0.00005
        return self.now >= self.done_at


def waited(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Clock:
    clock = Clock(seconds)
    monkeypatch.setattr(queues, "time", clock)
    wait_until(clock.is_done, lambda: clock.ticks.append(clock.now))
    return clock


def test_a_long_step_ticks_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute on the device in which nobody hears of the engine looks like its death."""
    clock = waited(monkeypatch, 5.5)
    assert len(clock.ticks) == 6
    gaps = [after - before for before, after in zip(clock.ticks, clock.ticks[1:], strict=False)]
    assert max(gaps) < TICK_SECONDS + 2 * NAP_SECONDS
    assert clock.now < 5.5 + 2 * NAP_SECONDS


def test_a_short_one_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nap after each step would be part of every token's latency."""
    clock = waited(monkeypatch, SPIN_SECONDS / 2)
    assert (clock.naps, len(clock.ticks)) == (0, 1)
