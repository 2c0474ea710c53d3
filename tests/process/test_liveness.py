"""What counts as stuck, by a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.engine.heartbeat import Phase
from sluice.process.heartbeat import Reading
from sluice.process.liveness import Counts, LivenessWatch

EVEN = Counts(sent=3, received=5)
LOOK = 0.2


def reading(ticks: int, phase: Phase = Phase.BUSY, *, landed: int = 0, received: int = 3, sent: int = 5) -> Reading:
    return Reading(ticks, phase, step=7, landed=landed, tokens=0, received=received, sent=sent)


def judged(readings: Iterable[Reading], *, every: float = LOOK, counts: Counts = EVEN) -> tuple[float, str] | None:
    """When a watch first found something wrong, and what; it looks once for each reading."""
    watch, now = LivenessWatch(5.0, 60.0, 0.0), 0.0
    for each in readings:
        now += every
        verdict = watch.look(each, counts, now)
        if verdict is not None:
            return round(now, 1), verdict
    return None


def test_silence_for_five_seconds_is_death_and_no_less() -> None:
    found = judged([reading(4)] * 100)
    assert found is not None
    assert found == (5.2, "gave no sign of life for 5.0 s in step 7 (busy) and was ended")
    assert judged([reading(4)] * 25 + [reading(5)] * 25) is None


def test_a_step_may_take_an_hour_while_it_ticks() -> None:
    """Busy servers killed by their health check: a long prompt gives no token for minutes."""
    assert judged(reading(look // 20) for look in range(5 * 3600)) is None


def test_loading_is_not_watched() -> None:
    assert judged([reading(0, Phase.LOADING)] * 1000) is None


def test_one_wait_for_the_device_has_a_limit_and_many_waits_have_none() -> None:
    """A wait ticks every second, so that only its length tells a device that hangs."""
    found = judged(reading(look // 5, Phase.DEVICE, landed=9) for look in range(500))
    assert found is not None
    assert found == (60.2, "waited 60.0 s for step 7 (--step-timeout) and was ended")
    assert judged(reading(look // 5, Phase.DEVICE, landed=look // 250) for look in range(1000)) is None


def test_an_idle_engine_that_misses_a_message() -> None:
    """Nothing else comes that would show the gap: the last token of a stream, or the only request."""
    idle = [reading(look // 5, Phase.IDLE) for look in range(100)]
    assert judged(idle) is None
    for counts in (Counts(sent=4, received=5), Counts(sent=3, received=4)):
        found = judged(idle, counts=counts)
        assert found is not None
        assert found[0] == 5.0
        assert "lost a message" in found[1]


def test_a_busy_engine_may_have_mail() -> None:
    assert judged((reading(look // 5) for look in range(100)), counts=Counts(9, 5)) is None


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """A laptop that slept, or a server that was stopped in a debugger, must not find its engine dead."""
    assert judged([reading(1), reading(1)], every=3600.0) is None
