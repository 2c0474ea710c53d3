"""The heartbeat in shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.engine.heartbeat import LoadingPart, Phase
from sluice.process.heartbeat import MAX_IN_FLIGHT, Reading, SharedHeartbeat


@pytest.fixture
def heartbeat(tmp_path: Path) -> SharedHeartbeat:
    SharedHeartbeat.create(tmp_path / "heartbeat")
    return SharedHeartbeat.open(tmp_path / "heartbeat")


def test_one_process_reads_what_the_other_wrote(tmp_path: Path, heartbeat: SharedHeartbeat) -> None:
    other = SharedHeartbeat.open(tmp_path / "heartbeat")
    assert other.read() == Reading(0, Phase.LOADING, -1, 0, 0)
    assert other.in_flight() == frozenset()
    heartbeat.loading(LoadingPart.WEIGHTS, 30, 40)
    assert other.read() == Reading(0, Phase.LOADING, -1, 0, 0, LoadingPart.WEIGHTS, 30, 40)
    heartbeat.loading(LoadingPart.MEMORY)
    heartbeat.tick(Phase.DEVICE)
    heartbeat.launching(4, [9, 1 << 40])
    heartbeat.step_done(70)
    assert other.read() == Reading(1, Phase.DEVICE, 4, 1, 70, LoadingPart.MEMORY, 0, 0)
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
