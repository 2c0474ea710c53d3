"""Numbers in shared memory, and what a runner tells of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.engine.heartbeat import Phase
from sluice.engine.watched import WatchedRunner
from sluice.server.heartbeat import MAX_IN_FLIGHT, Reading, SharedHeartbeat
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from sluice.types import FinishReason
from worlds import Bench, World, limits_of


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


def test_a_step_is_in_flight_from_before_its_launch_until_it_was_folded_in(heartbeat: SharedHeartbeat) -> None:
    """A process that dies launching, waiting or committing was working on that step, and on those behind it."""
    seen: list[frozenset[int]] = []

    class Looking(ManualLink):
        def send(self, outputs: object) -> None:
            seen.append(heartbeat.in_flight())

    world = World(limits_of(chunk=8, running=1, lookahead=1), num_pages=32, page_size=2, depth=2, late=True)
    bench = Bench.of(world, WatchedRunner(world.shadow(), heartbeat))
    bench.engine.link = Looking()
    for request_id, prompt in ((5, (1, 0, 1)), (6, (0, 1, 1))):
        bench.scheduler.add(request_id, prompt, resolved(2))
    bench.drain(50)
    assert seen == [{5}, {5}, {6}, {6}]
    reading = heartbeat.read()
    assert (reading.landed, reading.tokens) == (reading.step + 1, 2 * (3 + 1))
    heartbeat.close()


def test_a_launch_that_fails_is_over(heartbeat: SharedHeartbeat) -> None:
    """Its requests have ended; they must not be accused of what befalls the next step."""
    world = World(limits_of(chunk=8, running=1), num_pages=32, page_size=2)
    runner = WatchedRunner(FaultyRunner(world.shadow(), Faults(launch_raises=frozenset({0}))), heartbeat)
    bench = Bench.of(world, runner)
    for request_id in (5, 6):
        bench.scheduler.add(request_id, (1, 0, 1), resolved(2))
    bench.engine.step()
    assert bench.link.end(5).finish_reason is FinishReason.ERROR
    bench.engine.step()
    assert heartbeat.in_flight() == {6}
    assert heartbeat.read().landed == 1
    heartbeat.close()
