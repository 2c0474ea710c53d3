"""How often engines are restarted, after which pauses, and the descriptors that are held for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sluice.config import EngineConfig
from sluice.process.launch import EngineProcess
from sluice.process.restarts import Backoff, DescriptorReserve, RestartBudget
from sluice.process.wire import Start


def test_restarts_are_counted_within_a_window() -> None:
    """One restart a day for a year is no reason to give up."""
    budget = RestartBudget(2, window=10)
    assert [budget.spend(now) for now in (0, 5, 9, 10.5, 12, 15.5)] == [True, True, False, True, False, True]
    assert not RestartBudget(0).spend(0)


def test_pauses_grow_up_to_a_limit_and_begin_again() -> None:
    """Engines that die at once must not be started in a tight loop, and one death a day needs no pause."""
    for draw, share in ((0.0, 0.5), (1.0, 1.0)):
        pauses = Backoff(0.25, 1.5, lambda draw=draw: draw)
        assert [pauses.next() for _ in range(6)] == [share * length for length in (0, 0.25, 0.5, 1, 1.5, 1.5)]
        pauses.reset()
        assert [pauses.next(), pauses.next()] == [0, share * 0.25]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_reserve_is_enough_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few too few, libzmq aborts the server."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    reserve = DescriptorReserve()
    reserve.fill()
    with no_descriptors():
        reserve.release()
        engine = await EngineProcess.spawn(Start(EngineConfig(), "shadow_engine:build"))
        try:
            await engine.ready()
        finally:
            await engine.close()
        reserve.fill()
        reserve.release()


def test_a_reserve_keeps_what_there_is() -> None:
    """Otherwise connections take what becomes free, one by one, and the next attempt has no more than this one."""
    reserve = DescriptorReserve(3)
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            reserve.fill()
        DescriptorReserve(0).fill()
    reserve.fill()
    before = len(os.listdir("/proc/self/fd"))
    reserve.release()
    assert len(os.listdir("/proc/self/fd")) == before - 3
