"""Disaggregated prefill: prompts are computed by some replicas, and decoded by others."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sluice.bench.records import Record
from sluice.cli import main
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.disaggregate import IsApart, decode_replicas_of, simulate_disaggregated
from sluice.sim.machine import Machine, write_machine
from sluice.sim.remote import with_remote_tier
from sluice.sim.replica import SimulatedReplica
from sluice.sim.routers import sim_router
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.workload import Arrival, Leaves, Prompt, Segment
from sluice.sim.world import CopyRates, Residual, World, WorldTimes
from sluice.testing.laws import check_state
from sluice.types import BatchPlan, Chunk, Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=256, page_size=8)
STEP, TOKEN = 1000.0, 100.0
WORLD = World(dict.fromkeys(Regime, (STEP, TOKEN, 0.0, 0.0, 0.0, 0.0)))
"""A step takes a millisecond, and a tenth of one for each token."""
FREE = CopyRates(0.0, 0.0)


def arrival(time: float, length: int, output: int, **more: object) -> Arrival:
    fields = {"max_tokens": output, "prompt": Prompt((Segment(length + round(1000 * time), length),))} | more
    return Arrival(time=time, output_tokens=output, **fields)  # type: ignore[arg-type]


def traffic(count: int, seed: int = 0) -> list[Arrival]:
    """Return requests that share beginnings; some stop, some leave, and some are too long."""
    draw, found, time = random.Random(seed), [], 0.0
    for index in range(count):
        time += draw.expovariate(150)
        output = draw.randint(1, 12)
        leaves = draw.choice([None, None, None, Leaves(after_tokens=draw.randint(1, output)), Leaves(0, 0.02)])
        prompt = Prompt((Segment(index % 4, draw.randint(1, 90)), Segment(100 + index, draw.randint(1, 200))))
        more = draw.choice([0, 0, 5, 3000 if index % 10 == 0 else 0])
        found.append(Arrival(time=time, prompt=prompt, output_tokens=output, max_tokens=output + more, leaves=leaves))
    return found


def split(
    workload: list[Arrival],
    prefill: int = 1,
    decode: int = 1,
    transfer: CopyRates = FREE,
    setup: SchedulerSetup = SETUP,
    *,
    world: World = WORLD,
    leaps: bool = True,
    is_apart: IsApart = lambda request, now: True,
) -> list[Record]:
    first = replicas_of(setup, world, prefill)
    second = decode_replicas_of(setup, world, decode, transfer, workload, leaps=leaps)
    routers = sim_router("least-loaded", setup, prefill), sim_router("least-loaded", setup, decode)
    return simulate_disaggregated(workload, first, second, routers, is_apart=is_apart)


def test_the_second_token_waits_for_the_pages_and_for_nothing_else() -> None:
    """12 full pages of 8 tokens travel; 4 tokens of the prompt and the first token are computed where it decodes."""
    [record] = split([arrival(0.5, 100, 3)], transfer=CopyRates(0.02, 0.0001))
    first = 0.5 + (1 + 6.4 + 1 + 3.6) / 1000
    second = first + 0.02 + 96 * 0.0001 + (1 + 0.5) / 1000
    assert [each.at for each in record.arrivals] == pytest.approx([first, second, second + 0.0011])
    assert (record.due, record.finish_reason, record.prompt_tokens, record.max_tokens) == (0.5, "length", 100, 3)


def test_a_replica_loads_one_prompt_after_the_other() -> None:
    """Both share its network, and the second waits for the first."""
    requests = [arrival(0, 64, 2), arrival(0, 64, 2, prompt=Prompt((Segment(9, 64),)))]
    one, other = split(requests, prefill=2, transfer=CopyRates(0.0, 0.001))
    assert one.arrivals[0].at == other.arrivals[0].at
    assert other.ended - one.ended == pytest.approx(0.064, abs=0.003)


def test_pages_that_are_there_do_not_travel_again() -> None:
    """A prefix that the decode replica has on the device is found by its scheduler."""
    prompt = Prompt((Segment(1, 80),))
    again = arrival(1, 88, 2, prompt=prompt + Prompt((Segment(2, 8),)))
    first, second = split([arrival(0, 80, 2, prompt=prompt), again], transfer=CopyRates(0.0, 0.001))
    gaps = [each.arrivals[1].at - each.arrivals[0].at for each in (first, second)]
    assert gaps == pytest.approx([0.080 + 0.0011, 0.008 + 0.0011])
    assert (first.cached_tokens, second.cached_tokens) == (0, 80), "as the prefill replica found them"


def test_nothing_is_lost() -> None:
    """Each request ends once, as it would on one replica."""
    workload = traffic(200)
    records = split(workload, 2, 2, CopyRates(0.001, 0.00001))
    assert [record.due for record in records] == [each.time for each in workload]
    for record, each in zip(records, workload, strict=True):
        if record.failure is None:
            assert record.num_tokens == each.output_tokens
            assert record.finish_reason == ("stop" if each.output_tokens < each.max_tokens else "length")
        elif record.failure.kind == "left":
            assert each.leaves is not None
            assert record.num_tokens <= (each.leaves.after_tokens or each.output_tokens)
        else:
            assert each.prompt.length + each.max_tokens > SETUP.num_pages * SETUP.page_size
    assert sum(record.failure is None for record in records) > 100


def test_decode_replicas_without_bounds_leave_the_ttft_of_prefill_replicas() -> None:
    """What decodes elsewhere takes nothing from prompts."""
    workload = traffic(100)
    large = replace(SETUP, limits=replace(LIMITS, max_running_requests=100, max_batch_tokens=256), num_pages=4000)
    found = split(workload, 2, 100, FREE, large)
    alone = [replace(each, output_tokens=1, max_tokens=1) for each in workload]
    prompts = simulate(alone, replicas_of(large, WORLD, 2), sim_router("least-loaded", large, 2))
    assert [record.arrivals[:1] for record in found] == [record.arrivals for record in prompts]


class Watched(WorldTimes):
    """Times that keep the plans they are asked about, and check the state that they leave."""

    def __init__(self, setup: SchedulerSetup) -> None:
        super().__init__(WORLD, setup)
        self.plans: list[BatchPlan] = []
        self.scheduler: object = None

    def ends_at(self, plan: BatchPlan, now: float, free_at: float) -> float:
        self.plans.append(plan)
        assert isinstance(self.scheduler, Scheduler)
        check_state(self.scheduler.state)
        return super().ends_at(plan, now, free_at)


def test_decode_replicas_compute_no_more_of_a_prompt_than_its_last_page() -> None:
    """The first chunk there holds what is behind the last full page, and the first token. Only a request that was
    preempted may compute more, when memory ran out."""
    workload = [arrival(0.001 * index, 60 + index, 20, max_tokens=60) for index in range(40)]
    for num_pages in (1000, 48):
        setup = replace(SETUP, num_pages=num_pages, limits=replace(LIMITS, reserve="ratio"))
        remote = with_remote_tier(setup, sum(each.prompt.length for each in workload))
        times = Watched(remote)
        decode = SimulatedReplica(remote, times, rates=FREE)
        times.scheduler = decode.engine.scheduler
        routers = sim_router("least-loaded", setup, 2), sim_router("least-loaded", setup, 1)
        records = simulate_disaggregated(workload, replicas_of(setup, WORLD, 2), [decode], routers)
        assert [record.num_tokens for record in records] == [20] * 40
        first: dict[int, Chunk] = {}
        for plan in times.plans:
            for chunk in plan.chunks:
                first.setdefault(chunk.request_id, chunk)
                assert num_pages == 48 or chunk.length <= setup.page_size
        lengths = sorted(each.prompt.length for each in workload)
        assert sorted(chunk.end for chunk in first.values()) == [length + 1 for length in lengths]
        assert all(chunk.start == (chunk.end - 1) // 8 * 8 for chunk in first.values())


def test_leaps_change_nothing() -> None:
    """Pages on the tier of a decode replica are never stored, so a leap has nothing to copy."""
    residuals = tuple(Residual(Regime.DECODE, 0.5 + index % 7 / 5, 0.0) for index in range(100))
    world = World(dict.fromkeys(Regime, (STEP, TOKEN, 0.0, 0.0, 0.0, 0.0)), residuals, intake=0.001)
    for seed in range(5):
        workload = traffic(60, seed)
        runs = [split(workload, 1, 2, CopyRates(0.01, 0.0), world=world, leaps=leaps) for leaps in (True, False)]
        assert runs[0] == runs[1]
    decode = decode_replicas_of(SETUP, WORLD, 1, FREE, workload)
    routers = sim_router("least-loaded", SETUP, 1), sim_router("least-loaded", SETUP, 1)
    simulate_disaggregated(workload, replicas_of(SETUP, WORLD, 1), decode, routers)
    assert decode[0].num_leapt > 20


MACHINE = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)
SPLIT = ["--prefill-replicas", "2", "--transfer-us-per-token", "10"]


def simulated(tmp_path: Path, flags: list[str], machine: Machine = MACHINE) -> int:
    write_machine(machine, tmp_path / "machine.json")
    workload = ["--num-requests", "20", "--request-rate", "20", "--prompt-tokens", "100", "--output-tokens", "5"]
    return main(["simulate", "--calibrate", str(tmp_path / "machine.json"), *workload, *flags])


def test_the_command_splits_replicas(tmp_path: Path) -> None:
    """The network's speed counts by the bytes of a token, and the gap is in the records."""
    out = tmp_path / "out.json"
    known = msgspec.structs.replace(MACHINE, token_bytes=125_000)
    gaps = []
    for gbps in ("1", "0.25"):
        flags = ["--prefill-replicas", "1", "--replicas", "4", "--transfer-gbps", gbps, "--json", str(out)]
        assert simulated(tmp_path, flags, known) == 0
        content = json.loads(out.read_bytes())
        gaps.append(min(each["arrivals"][1][0] - each["arrivals"][0][0] for each in content["runs"][0]["requests"]))
    assert content["settings"]["simulation"]["disaggregation"] == {
        "prefill_replicas": 1,
        "latency": 0.0,
        "token": 0.004,
        "least_tokens": 0,
        "patience": None,
    }
    assert gaps == pytest.approx([0.096, 4 * 0.096], rel=0.03)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prefill-replicas", "0", "--transfer-gbps", "1"], "--prefill-replicas must be at least 1, got 0"),
        (["--prefill-replicas", "2"], "needs --transfer-gbps or --transfer-us-per-token"),
        (["--transfer-gbps", "1"], "--transfer-gbps needs --prefill-replicas"),
        ([*SPLIT, "--transfer-gbps", "1"], "both say how long"),
        ([*SPLIT[:3], "-1"], "--transfer-us-per-token must be at least 0, got -1"),
        ([*SPLIT[:2], "--transfer-gbps", "0"], "--transfer-gbps must be above 0, got 0"),
        ([*SPLIT[:2], "--transfer-gbps", "5"], "needs the bytes of a token's KV"),
        ([*SPLIT, "--transfer-latency-ms", "nan"], "--transfer-latency-ms must be at least 0, got nan"),
        ([*SPLIT, "--split-tokens", "-1"], "--split-tokens must be at least 0, got -1"),
        ([*SPLIT, "--split-patience", "0"], "--split-patience must be above 0, got 0"),
        (["--split-tokens", "9"], "--split-tokens needs --prefill-replicas"),
        ([*SPLIT, "--no-enable-prefix-caching"], "--prefill-replicas needs --enable-prefix-caching"),
        ([*SPLIT, "--windows", "3"], "--prefill-replicas is not accepted with --windows"),
    ],
)
def test_wrong_values_are_refused(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(tmp_path, flags) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_short_prompts_are_computed_where_they_are_decoded() -> None:
    """Their KV would travel for nothing, and they would wait behind long ones."""
    workload = [arrival(0.1 * index, 40 if index % 2 else 120, 4) for index in range(20)]
    found = split(workload, transfer=CopyRates(0.02, 0.0), is_apart=lambda request, now: request.num_tokens >= 100)
    gaps = [record.arrivals[1].at - record.arrivals[0].at for record in found]
    assert all(gap > 0.02 for gap in gaps[::2])
    assert all(gap < 0.01 for gap in gaps[1::2])
    assert [record.num_tokens for record in found] == [4] * 20


@pytest.mark.parametrize(
    ("flags", "gaps"), [([], 20), (["--split-tokens", "101"], 0), (["--split-patience", "0.01"], 0)]
)
def test_the_command_decides_by_length_and_load(tmp_path: Path, flags: list[str], gaps: int) -> None:
    """Flags without effect would tell an operator that a split does not matter."""
    out = tmp_path / "out.json"
    flags = ["--prefill-replicas", "1", "--transfer-us-per-token", "500", "--json", str(out), *flags]
    assert simulated(tmp_path, flags) == 0
    requests = json.loads(out.read_bytes())["runs"][0]["requests"]
    travelled = sum(each["arrivals"][1][0] - each["arrivals"][0][0] > 0.04 for each in requests)
    assert travelled == gaps
