"""Replicas in several processes do what they do in one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slow import slow
from sluice.cli import main
from sluice.routing.policies import POLICIES
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import LocalFleet, ReplicaSpec, in_processes
from sluice.sim.machine import Machine, write_machine
from sluice.sim.routers import publish_every, sim_router
from sluice.sim.simulate import in_due_order, run
from sluice.sim.workload import Arrival, Leaves, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=200, page_size=16)
RESIDUALS = tuple(Residual(Regime.DECODE, 0.6 + index % 9 / 10, 0.001) for index in range(300))
WORLD = World(dict.fromkeys(Regime, (3000.0, 60.0, 100.0, 0.0, 0.0, 0.0)), RESIDUALS, intake=0.001)
EPOCH = 0.25


def traffic(count: int = 150) -> list[Arrival]:
    draw, time, found = random.Random(3), 0.0, []
    for index in range(count):
        time += draw.expovariate(30)
        output = draw.randint(1, 40)
        leaves = draw.choice([None, None, Leaves(after_tokens=draw.randint(1, output)), Leaves(0, 0.03)])
        prompt = Prompt((Segment(-1 - index % 5, draw.randint(16, 90)), Segment(index, draw.randint(1, 80))))
        found.append(Arrival(time=time, prompt=prompt, output_tokens=output, max_tokens=output + 2, leaves=leaves))
    return found


@pytest.mark.parametrize("name", [POLICIES[0], POLICIES[-1], *map(slow, POLICIES[1:-1])])
def test_processes_change_nothing(name: str) -> None:
    """Every record, and so every choice of the router, is that of one process. 5 replicas make unequal parts."""
    spec, arrivals = ReplicaSpec(SETUP, WORLD, 5, seed=2, publish_every=publish_every(name)), traffic()
    alone = in_due_order(
        list(run(arrivals, LocalFleet(spec.make(range(5))), sim_router(name, SETUP, 5, 7), epoch=EPOCH))
    )
    with in_processes(spec, 2) as groups:
        shared = in_due_order(list(run(arrivals, groups, sim_router(name, SETUP, 5, 7), epoch=EPOCH)))
    assert shared == alone


def test_an_error_in_a_process_is_raised_here() -> None:
    """It would wait for ever for an answer."""
    spec = ReplicaSpec(SETUP, WORLD, 2)
    with in_processes(spec, 2) as groups:
        groups.submit(1, None, 0)  # type: ignore[arg-type]  # no request
        with pytest.raises(AttributeError):
            groups.advance(1.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--processes", "2"], "--processes 2 needs --windows, or --epoch-ms"),
        (["--processes", "5", "--epoch-ms", "9"], "--processes must be from 1 to the 4 of --replicas"),
        (["--processes", "0", "--epoch-ms", "9"], "--processes must be from 1 to"),
        (["--epoch-ms", "-1"], "--epoch-ms must be at least 0, got -1"),
        (["--window-seconds", "3"], "--window-seconds needs --windows"),
        (["--epoch-ms", "9", "--prefill-replicas", "2"], "--prefill-replicas is not accepted with --epoch-ms"),
    ],
)
def test_wrong_values_are_refused(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--calibrate", str(tmp_path / "none.json"), "--replicas", "4", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_command_shares_replicas_out(tmp_path: Path) -> None:
    """Its file says how, and the figures are those of one process."""
    machine = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)
    write_machine(machine, tmp_path / "machine.json")
    base = ["simulate", "--calibrate", str(tmp_path / "machine.json"), "--request-rate", "20", "--replicas", "3"]
    found = []
    for processes in ("1", "2"):
        out = tmp_path / f"{processes}.json"
        flags = ["--router", "least-loaded", "--epoch-ms", "250", "--processes", processes, "--json", str(out)]
        assert main([*base, *flags]) == 0
        found.append(json.loads(out.read_bytes()))
    assert found[0]["runs"][0]["requests"] == found[1]["runs"][0]["requests"]
    assert found[1]["settings"]["simulation"]["part"] == {"epoch": 0.25, "processes": 2}
