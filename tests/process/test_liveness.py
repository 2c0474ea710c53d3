"""The decision whether an engine is alive, and whether one that loads makes progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from sluice.engine.heartbeat import LoadingPart, Phase
from sluice.process.activity import Activity
from sluice.process.heartbeat import Reading
from sluice.process.liveness import LivenessWatch, LoadingWatch

LOOK = 0.2


def reading(ticks: int, phase: Phase = Phase.BUSY, *, steps_done: int = 0) -> Reading:
    return Reading(ticks, phase, step=7, steps_done=steps_done, tokens=0)


def judged(
    readings: Iterable[Reading],
    *,
    every: float = LOOK,
    cpu_share: float = 0.0,
    queued_share: float = 0.0,
) -> tuple[float, str] | None:
    """Return when and why a watch first judged the engine dead; it looks once for each reading.

    Args:
        cpu_share: part of the time that the engine's process computes.
        queued_share: part of the time that its main thread waits for a processor.
    """
    watch, now = LivenessWatch(5.0, 60.0, 0.0), 0.0
    for each in readings:
        now += every
        verdict = watch.look(each, now, lambda now=now: Activity(cpu_share * now, 7, queued_share * now))
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


def test_a_long_call_of_compiled_code_is_no_hang() -> None:
    """One layer of a long prompt may take minutes without a tick, and a killed engine would begin it again."""
    silent = [reading(4)] * 1000
    assert judged(silent, cpu_share=0.02) == judged(silent)
    assert judged(silent[:290], cpu_share=0.2) is None
    found = judged(silent, cpu_share=0.2)
    assert found is not None
    assert found == (60.2, "computed for 60.0 s without a heartbeat in step 7 (busy, --step-timeout) and was killed")


def test_an_idle_engine_that_does_not_tick_is_dead_whatever_other_threads_compute() -> None:
    assert judged([reading(4, Phase.IDLE)] * 100, cpu_share=1.0) is not None


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.BUSY])
def test_an_engine_that_gets_no_processor_is_alive(phase: Phase) -> None:
    """On a machine with too much to do an idle engine was killed, and its model loaded anew."""
    silent = [reading(4, phase)] * 1000
    assert judged(silent[:290], queued_share=0.5) is None
    assert judged(silent, queued_share=0.05) == judged(silent)
    found = judged(silent, queued_share=0.5)
    assert found is not None, "a thread that never gets anywhere hangs"
    assert found[0] == 60.2


def test_one_wait_for_the_device_has_a_limit_and_many_waits_have_none() -> None:
    """A wait ticks every second, so only its length shows that the device hangs."""
    found = judged(reading(look // 5, Phase.DEVICE, steps_done=9) for look in range(500))
    assert found is not None
    assert found == (60.2, "waited 60.0 s for step 7 (--step-timeout) and was killed")
    assert judged(reading(look // 5, Phase.DEVICE, steps_done=look // 250) for look in range(1000)) is None


def test_time_without_looks_does_not_count() -> None:
    """A laptop that slept, or a server that was stopped in a debugger, must not judge its engine dead."""
    assert judged([reading(1), reading(1)], every=3600.0) is None


def loading(bytes_read: int = 0, *, ticks: int = 0) -> Reading:
    return Reading(ticks, Phase.LOADING, -1, 0, 0, LoadingPart.WEIGHTS, bytes_read, 1000)


def hangs_at(
    readings: Iterable[Reading], activity: Sequence[Activity | None] = (Activity(3.0, 7),)
) -> tuple[float, str] | None:
    """Return when and how a watch first judged that an engine hangs while it loads."""
    watch, now = LoadingWatch(60.0, 0.0), 0.0
    for number, each in enumerate(readings):
        now += LOOK
        found = activity[number % len(activity)]
        verdict = watch.look(each, now, lambda found=found: found)
        if verdict is not None:
            return round(now, 1), verdict
    return None


def test_an_engine_that_loads_hangs_after_a_minute_without_progress() -> None:
    """A minute, not the half hour that a model may take to load."""
    found = hangs_at([loading(450)] * 1000)
    assert found is not None
    assert found == (60.4, "made no progress for 60.0 s while it loaded (--progress-timeout): weights, 45%")


def test_loading_may_take_an_hour_while_it_progresses() -> None:
    """A large model comes from a slow disk, or its kernels are compiled by other processes."""
    hour = range(5 * 3600)
    assert hangs_at(loading(look // 250) for look in hour) is None
    assert hangs_at(loading(ticks=look // 250) for look in hour) is None
    assert hangs_at((loading() for look in hour), [Activity(3.0, look) for look in hour]) is None
    assert hangs_at((loading() for look in hour), [Activity(0.1 * look, 7) for look in hour]) is None
    assert hangs_at((loading() for look in hour), [None]) is None, "not known on this system"
    assert hangs_at((loading() for look in hour), [Activity(0.01 * look, 7) for look in hour]) is not None
