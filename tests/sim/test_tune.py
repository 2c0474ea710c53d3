"""`sluice tune`: what is tried, what is chosen, and what is said of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sluice.bench.records import Failure, Record, TokenArrival
from sluice.cli import main
from sluice.config import ConfigError
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.candidates import HOST_TOKENS, Candidate, candidates, default_grid, given_grid
from sluice.sim.machine import Machine, write_machine
from sluice.sim.slo import Figure, parse_slo
from sluice.sim.tally import Counts, SloTally
from sluice.sim.tune import Tuner, busiest, round_sizes
from sluice.sim.tune_command import report
from sluice.sim.workload import Arrival, Leaves, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import Regime, SchedulerLimits

RNG = random.Random(1)
LIMITS = SchedulerLimits(
    schedule="mixed", chunked_prefill_size=64, max_batch_tokens=96, max_running_requests=32, max_partial_prefills=4
)
SETUP = SchedulerSetup(LIMITS, num_pages=512, page_size=16)
WORLD = World(
    dict.fromkeys(Regime, (20_000.0, 1000.0, 500.0, 0.0, 0.0, 0.0)),
    tuple(Residual(Regime.MIXED, RNG.lognormvariate(0, 0.2), 0.0005) for _ in range(300)),
)
MACHINE = Machine(model="some-model", name="a machine", is_measured=True, setup=SETUP, depth=1, world=WORLD)
SLO = parse_slo("ttft_p95<2s,itl_p99<200ms")


def traffic(count: int = 60, rate: float = 1.0, length: int = 300) -> list[Arrival]:
    rng, time, found = random.Random(0), 0.0, []
    for number in range(count):
        time += rng.expovariate(rate)
        prompt = Prompt((Segment(number, rng.randint(20, length)),))
        found.append(Arrival(time=time, prompt=prompt, output_tokens=20, max_tokens=20))
    return found


def chunks(*sizes: int) -> list[Candidate]:
    return candidates(MACHINE, given_grid([f"chunked_prefill_size={','.join(map(str, sizes))}"], MACHINE), 100, 0)


def record(ttft: float | None, *gaps: float, failure: Failure | None = None) -> Record:
    arrivals, at = [], ttft or 0.0
    if ttft is not None:
        arrivals.append(TokenArrival(at, 1))
        for gap in gaps:
            at += gap
            arrivals.append(TokenArrival(at, 1))
    return Record(0, 0, False, "", 1, 9, 0.0, 0.0, 0.0, at, tuple(arrivals), failure=failure)


def test_settings_are_the_measured_ones_and_what_differs() -> None:
    """Equal engines would be simulated twice, and options that change nothing be recommended."""
    found = chunks(32, 64, 128)
    assert dict(found[0].settings) == {}
    assert sorted(each.machine.setup.limits.chunked_prefill_size for each in found) == [32, 64, 128]
    assert chunks(128)[1].arguments() == "--chunked-prefill-size 128"


def test_the_default_grid_has_targets_for_an_itl_objective_and_prefix_options_for_prefixes() -> None:
    """Options without a reason multiply the runs."""
    names = {name for each in default_grid(MACHINE, traffic(), SLO) for name in each}
    assert {"itl_target", "chunked_prefill_size", "max_running_requests", "schedule"} <= names
    assert not names & {"schedule_policy", HOST_TOKENS}
    shared = [Arrival(time=0, prompt=Prompt((Segment(7, 100),)), output_tokens=1, max_tokens=1)] * 2
    names = {name for each in default_grid(MACHINE, shared, parse_slo("ttft_p95<2s")) for name in each}
    assert {"schedule_policy", HOST_TOKENS} <= names
    assert "itl_target" not in names


@pytest.mark.parametrize("text", ["chunk=3", "chunked_prefill_size", "chunked_prefill_size=", "host_tokens=-1"])
def test_a_search_names_options_that_a_simulation_has(text: str) -> None:
    """A misspelt option would be searched without effect."""
    with pytest.raises(ConfigError, match="--search"):
        given_grid([text], MACHINE)


@pytest.mark.parametrize("text", ["chunked_prefill_size=128,1000000", "schedule_policy=fcfs,foo"])
def test_a_value_that_cannot_be_honoured_is_refused(text: str) -> None:
    """A misspelt value would be left out, and the search taken for one that had tried it."""
    with pytest.raises(ConfigError, match=f"--search {text.partition('=')[0]}={text.rpartition(',')[2]}: "):
        given_grid([text], MACHINE)


def test_combinations_that_cannot_be_honoured_are_told() -> None:
    """Each value may be good with another one."""
    texts = ["max_running_requests=8,64", "max_batch_tokens=48,128", "itl_target=off,100ms", "itl_quantile=0.9"]
    refused: list[ConfigError] = []
    found = candidates(MACHINE, given_grid(texts, MACHINE), 100, 0, on_refused=refused.append)
    assert refused
    assert any("--max-batch-tokens" in str(each) for each in refused)
    assert {each.settings.get("max_batch_tokens") for each in found} == {None, 48, 128}
    with pytest.raises(ConfigError, match="max-batch-tokens"):
        candidates(MACHINE, [{"max_running_requests": 64, "max_batch_tokens": 48}], 100, 0)


def test_the_best_of_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving and abandoned runs must not lose the setting that a whole search finds."""
    found, arrivals = chunks(16, 32, 64, 128, 256), traffic(128)
    monkeypatch.setattr("sluice.sim.tune.FINALISTS", 2)
    halved = Tuner(arrivals, SLO, repeats=1).tune(found, [1])
    monkeypatch.setattr("sluice.sim.tune.FINALISTS", 5)
    monkeypatch.setattr("sluice.sim.tune.LEAST_REQUESTS", 1000)
    whole = Tuner(arrivals, SLO, repeats=1).tune(found, [1])
    assert halved.requests < 0.5 * whole.requests
    assert [dict(each.outcomes[0].candidate.settings) for each in (halved, whole)] == [{"chunked_prefill_size": 32}] * 2


def test_a_run_is_abandoned_only_when_its_figure_is_certain() -> None:
    """A percentile that could still fall below the limit says nothing yet."""
    slo = parse_slo("ttft_p90<1s")
    arrivals = traffic(20)
    tally = SloTally(slo, Counts(arrivals))
    strict = SloTally(slo, Counts(arrivals), excess=2.0)
    for number in range(20):
        assert not tally.is_hopeless
        done = record(3.0 if number < 2 else 0.5)
        tally.add(done)
        strict.add(done)
    assert not strict.is_hopeless
    assert strict.values()[Figure("ttft", "p90")] == pytest.approx(0.75), "between the second and the third of 20"
    over = SloTally(slo, Counts(arrivals), excess=2.0)
    for _ in range(3):
        over.add(record(3.0))
    assert over.is_hopeless
    for _ in range(17):
        over.add(record(0.5))
    assert over.values()[Figure("ttft", "p90")] == 3.0


def test_failed_requests_wait_for_ever_for_what_they_never_had() -> None:
    """A setting that refuses half of the traffic would have the best latencies. A client that leaves is no failure."""
    slo = parse_slo("ttft_max<1s,e2e_max<2s,itl_max<1s,tpot_max<1s")
    tally = SloTally(slo, Counts(traffic(3)))
    tally.add(record(0.5, 0.25))
    tally.add(record(None, failure=Failure("left", "the client left")))
    assert [*tally.values().values()] == [0.5, 0.75, 0.25, 0.25]
    tally.add(record(None, failure=Failure("error", "no memory")))
    assert [*tally.values().values()] == [math.inf] * 4


def test_a_request_that_fails_in_the_middle_had_its_first_token() -> None:
    """Its next token never came, so only the time to the first is finite."""
    tally = SloTally(parse_slo("ttft_max<1s,itl_max<1s,tpot_max<1s"), Counts(traffic(1)))
    tally.add(record(0.5, 0.25, failure=Failure("error", "no memory")))
    assert [*tally.values().values()] == [0.5, math.inf, math.inf]


def test_an_objective_without_a_latency_is_refused() -> None:
    """Any setting would meet it."""
    one = [replace(each, output_tokens=1, max_tokens=1) for each in traffic(40)]
    with pytest.raises(ConfigError, match="--slo itl_p99: no request"):
        Tuner(one, SLO, repeats=1).tune(chunks(64, 128), [1])
    gone = [replace(each, leaves=Leaves(after_seconds=1e-6)) for each in traffic(40)]
    with pytest.raises(ConfigError, match="--slo e2e_mean: no request"):
        Tuner(gone, parse_slo("e2e_mean<1s"), repeats=1).tune(chunks(64, 128), [1])


def test_replicas_are_added_until_the_objectives_are_met() -> None:
    """The fewest machines are what is asked for."""
    arrivals = traffic(60, rate=6.0)
    tuned = Tuner(arrivals, parse_slo("ttft_p95<1s"), repeats=2).tune(chunks(64, 128), [1, 2, 4, 8])
    assert [each.replicas for each in tuned.outcomes] == [2, 2, 1, 1], "neither 4 nor 8 was tried"
    assert [each.is_met for each in tuned.outcomes if each.replicas == 1] == [False, False]
    assert (tuned.pick.replicas, tuned.pick.is_met, tuned.tried) == (2, True, 4)


def test_an_impossible_objective_has_a_nearest_one() -> None:
    """To fail without saying what can be had helps nobody plan."""
    slo = parse_slo("ttft_p95<1ms,itl_p99<10s")
    tuned = Tuner(traffic(), slo, repeats=2).tune(chunks(64, 256), [1])
    assert not tuned.pick.is_met
    text = report(tuned, slo, MACHINE)
    assert "no setting tried meets it in every repeat; the nearest that is met: ttft_p95<" in text
    assert "itl_p99<10.00s" in text


def test_nothing_of_a_predicted_machine_is_called_measured() -> None:
    """Its rows would be read as those of a machine that was."""
    machine = structs.replace(MACHINE, is_measured=False)
    found = candidates(machine, given_grid(["chunked_prefill_size=64,256"], machine), 100, 0)
    tuned = Tuner(traffic(), SLO, repeats=2).tune(found, [1])
    text = report(tuned, SLO, machine)
    assert "\npredicted, not measured: ttft_p95" in text
    assert "frontier (predicted, not measured: mean of 2" in text
    assert "as measured" not in text
    assert "(all options left open)" in text


def test_a_request_longer_than_the_pool_is_refused_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine would refuse it, and the objectives would be missed for a reason that no setting changes."""
    write_machine(MACHINE, tmp_path / "machine.json")
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,8190,5\n")
    base = ["tune", str(tmp_path / "t.csv"), "--calibrate", str(tmp_path / "machine.json"), "--slo", "ttft_p95<60s"]
    assert main(base) == 1
    assert "line 3: num_prefill_tokens and num_decode_tokens must be at most 8192" in capsys.readouterr().err
    assert main([*base, "--skip", "too-long", "--settings", "2", "--repeats", "1"]) == 0
    assert "1 rows of" in capsys.readouterr().err


def test_rounds_grow_to_the_whole_traffic_and_begin_with_its_busiest_part() -> None:
    """The calm part of a day says nothing about its objectives."""
    assert round_sizes(2000) == [125, 500, 2000]
    assert (round_sizes(127), round_sizes(128)) == ([127], [32, 128])
    quiet = [Arrival(time=10.0 * n, prompt=Prompt((Segment(n, 10),)), output_tokens=1, max_tokens=1) for n in range(10)]
    busy = [
        Arrival(time=100 + n, prompt=Prompt((Segment(100 + n, 10),)), output_tokens=1, max_tokens=1) for n in range(5)
    ]
    part = busiest([*quiet, *busy], 5)
    assert [each.time for each in part] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert part[0].prompt == busy[0].prompt


def test_the_command_prints_what_to_use_and_how_sure_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status says whether the objectives are met."""
    write_machine(MACHINE, tmp_path / "machine.json")
    rows = [f"{each.time},{each.prompt.length},{each.output_tokens}\n" for each in traffic(40)]
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    base = ["tune", str(tmp_path / "t.csv"), "--calibrate", str(tmp_path / "machine.json"), "--repeats", "2"]
    assert main([*base, "--slo", "ttft_p95<60s,itl_p99<30s", "--search", "chunked_prefill_size=64,128"]) == 0
    out = capsys.readouterr().out
    assert "met with 1 replica" in out
    assert "sluice serve MODEL " in out
    assert "--max-running-requests 32" in out
    assert "--max-total-tokens 8192" in out
    assert "objectives met in 2 of 2 repeats" in out
    assert main([*base, "--slo", "ttft_p95<1ms", "--search", "chunked_prefill_size=64,128"]) == 1


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"--slo": "fast"}, "--slo takes"),
        ({"--replicas": "0"}, "--replicas must be"),
        ({"--router": "best"}, "--router must be one of"),
        ({"--settings": "0"}, "--settings must be at least 1"),
    ],
)
def test_a_wrong_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], error: str
) -> None:
    given = {"--slo": "ttft_p95<1s"} | more
    assert main(["tune", str(tmp_path / "none"), *(part for pair in given.items() for part in pair)]) == 2
    assert error in capsys.readouterr().err
