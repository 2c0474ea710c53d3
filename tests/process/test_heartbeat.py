"""The heartbeat in shared memory, and the decision whether an engine is alive."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sluice.engine.heartbeat import Phase
from sluice.process.heartbeat import MAX_IN_FLIGHT, Counts, LivenessWatch, Reading, SharedHeartbeat

EVEN = Counts(sent=3, received=5)
LOOK = 0.2


@pytest.fixture
def heartbeat(tmp_path: Path) -> SharedHeartbeat:
    SharedHeartbeat.create(tmp_path / "heartbeat")
    return SharedHeartbeat.open(tmp_path / "heartbeat")


def test_one_process_reads_what_the_other_wrote(tmp_path: Path, heartbeat: SharedHeartbeat) -> None:
    other = SharedHeartbeat.open(tmp_path / "heartbeat")
    assert other.read() == Reading(0, Phase.LOADING, -1, 0, 0, 0, 0)
    assert other.in_flight() == frozenset()
    heartbeat.tick(Phase.DEVICE)
    heartbeat.launching(4, [9, 1 << 40])
    heartbeat.step_done(70)
    heartbeat.messages(received=2, sent=3)
    assert other.read() == Reading(1, Phase.DEVICE, 4, 1, 70, 2, 3)
    assert other.in_flight() == {9, 1 << 40}
    heartbeat.launching(5, [2])
    assert other.in_flight() == {2}
    other.close()
    heartbeat.close()


def test_if_too_many_are_in_flight_none_is_recorded(heartbeat: SharedHeartbeat) -> None:
    heartbeat.launching(0, [1])
    heartbeat.launching(1, range(MAX_IN_FLIGHT + 1))
    assert heartbeat.in_flight() == frozenset()
    heartbeat.close()


def reading(ticks: int, phase: Phase = Phase.BUSY, *, steps_done: int = 0, received: int = 3, sent: int = 5) -> Reading:
    return Reading(ticks, phase, step=7, steps_done=steps_done, tokens=0, received=received, sent=sent)


def judged(readings: Iterable[Reading], *, every: float = LOOK, counts: Counts = EVEN) -> tuple[float, str] | None:
    """Return when and why a watch first judged the engine dead; it looks once for each reading."""
    watch, now = LivenessWatch(5.0, 60.0, 0.0), 0.0
    for each in readings:
        now += every
        verdict = watch.look(each, counts, now)
        if verdict is not None:
            return round(now, 1), verdict
    return None


def test_an_engine_is_dead_after_five_seconds_without_a_tick() -> None:
    found = judged([reading(4)] * 100)
    assert found is not None
    assert found == (5.2, "sent no heartbeat for 5.0 s in step 7 (busy) and was killed")
    assert judged([reading(4)] * 25 + [reading(5)] * 25) is None


def test_a_step_may_take_an_hour_while_it_ticks() -> None:
    """A long prompt gives no token for minutes; a health check must not kill a busy server."""
    assert judged(reading(look // 20) for look in range(5 * 3600)) is None


def test_loading_is_not_watched() -> None:
    assert judged([reading(0, Phase.LOADING)] * 1000) is None


def test_one_wait_for_the_device_has_a_limit_and_many_waits_have_none() -> None:
    """A wait ticks every second, so only its length shows that the device hangs."""
    found = judged(reading(look // 5, Phase.DEVICE, steps_done=9) for look in range(500))
    assert found is not None
    assert found == (60.2, "waited 60.0 s for step 7 (--step-timeout) and was killed")
    assert judged(reading(look // 5, Phase.DEVICE, steps_done=look // 250) for look in range(1000)) is None


def test_an_idle_engine_that_misses_a_message() -> None:
    """No later message shows the gap after the last token of a stream, or the only request."""
    idle = [reading(look // 5, Phase.IDLE) for look in range(100)]
    assert judged(idle) is None
    for counts in (Counts(sent=4, received=5), Counts(sent=3, received=4)):
        found = judged(idle, counts=counts)
        assert found is not None
        assert found[0] == 5.0
        assert "lost a message" in found[1]


def test_a_busy_engine_may_have_unread_messages() -> None:
    assert judged((reading(look // 5) for look in range(100)), counts=Counts(9, 5)) is None


def test_time_without_looks_does_not_count() -> None:
    """A laptop that slept, or a server that was stopped in a debugger, must not judge its engine dead."""
    assert judged([reading(1), reading(1)], every=3600.0) is None
