"""Numbers in shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.engine.heartbeat import Phase
from sluice.process.heartbeat import MAX_IN_FLIGHT, Reading, SharedHeartbeat


@pytest.fixture
def heartbeat(tmp_path: Path) -> SharedHeartbeat:
    SharedHeartbeat.create(tmp_path / "heartbeat")
    return SharedHeartbeat.open(tmp_path / "heartbeat")


def test_what_one_writes_the_other_reads(tmp_path: Path, heartbeat: SharedHeartbeat) -> None:
    other = SharedHeartbeat.open(tmp_path / "heartbeat")
    assert other.read() == Reading(0, Phase.LOADING, -1, 0, 0, 0, 0)
    assert other.in_flight() == frozenset()
    heartbeat.tick(Phase.DEVICE)
    heartbeat.launching(4, [9, 1 << 40])
    heartbeat.landed(70)
    heartbeat.messages(received=2, sent=3)
    assert other.read() == Reading(1, Phase.DEVICE, 4, 1, 70, 2, 3)
    assert other.in_flight() == {9, 1 << 40}
    heartbeat.launching(5, [2])
    assert other.in_flight() == {2}
    other.close()
    heartbeat.close()


def test_more_in_flight_than_fit_are_nobody(heartbeat: SharedHeartbeat) -> None:
    heartbeat.launching(0, [1])
    heartbeat.launching(1, range(MAX_IN_FLIGHT + 1))
    assert heartbeat.in_flight() == frozenset()
    heartbeat.close()
