"""Tests for machines: fitted to a trace, saved and read, measured here, predicted, and changed by options."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from any_checkpoint import any_checkpoint
from sluice.cli import main
from sluice.config import ConfigError
from sluice.scheduler.cost import StepLoad
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.calibrate import Observed, Timed, fit
from sluice.sim.hardware import predicted_machine
from sluice.sim.machine import Machine, read_machine, write_machine
from sluice.sim.measure import machine_of
from sluice.sim.settings import changed
from sluice.sim.world import CopyRates, StepWork
from sluice.tracing.format import TraceError
from sluice.types import ITL_AUTO, Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=256, page_size=32)
LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def seconds_of(load: StepLoad) -> float:
    return (2000 + 100 * load.tokens + 50 * load.rows + 0.5 * load.context + 0.25 * load.pairs) / 1e6


def steps(count: int = 120) -> list[Timed]:
    """Steps of an exact machine, which leaves 1 ms between them."""
    found = []
    for index in range(count):
        rows, length = 1 + index % 7, 8 * (index % 5)
        load = StepLoad(rows, rows, rows * (20 + 13 * index))
        if length:
            load = load.with_chunk(16 * (index % 3), length)
        work = StepWork(Regime.MIXED if length else Regime.DECODE, load)
        found.append(Timed(work, seconds_of(load), 0.001))
    return found


def machine() -> Machine:
    found = fit(Observed(steps(), [0.004, 0.002, 0.003], [(1, 0.003), (10, 0.012)]), SETUP)
    return Machine(
        model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=found.world, steps=dict(found.steps)
    )


def test_the_fit_finds_the_costs_of_an_exact_machine() -> None:
    """A fit that forgets, as the pacer's does, would follow the last steps alone."""
    found = fit(Observed(steps(), [0.004, 0.002, 0.003], [(1, 0.003), (10, 0.012)]), SETUP)
    assert found.error < 0.03
    assert found.world.intake == 0.003
    assert found.world.gap == 0.001
    assert found.world.copies == CopyRates(pytest.approx(0.002), pytest.approx(0.001 / 32))
    assert found.steps[Regime.PREFILL] == 0
    unseen = found.world.modelled(StepWork(Regime.PREFILL, StepLoad().with_chunk(0, 32)))
    assert 0.003 < unseen < 0.01, "mixed steps stand for prefill alone"


def test_a_pause_is_as_long_in_a_larger_step() -> None:
    """Multiplied, a pause of 50 ms in a step of 2 ms would be one of a second in a step of 40."""
    exact = steps()
    paused = [*exact[:60], *(step._replace(seconds=step.seconds + 0.05) for step in exact[60:63]), *exact[63:]]
    world = fit(Observed(paused, [], []), SETUP).world
    assert max(residual.ratio for residual in world.residuals) <= 2
    assert [0.04 < residual.stall < 0.05 for residual in world.residuals[60:63]] == [True] * 3
    assert sum(residual.stall for residual in world.residuals) < 0.16


def test_a_kind_with_few_steps_is_fitted_with_those_of_the_same_kernels() -> None:
    """The first prompts find a cold machine: all steps of another schedule would be as slow as these few."""
    cold = [Timed(StepWork(Regime.PREFILL, StepLoad().with_chunk(0, 64)), 0.05, 0.001)] * 5
    exact = [step for step in steps(600) if step.work.load.pairs or step.work.regime is Regime.DECODE]
    world = fit(Observed([*cold, *exact], [], []), SETUP).world
    long = StepLoad().with_chunk(0, 32)
    assert world.modelled(StepWork(Regime.PREFILL, long)) == pytest.approx(seconds_of(long), rel=0.1)
    alone = fit(Observed([*(cold * 20), *exact], [], []), SETUP).world
    assert alone.modelled(StepWork(Regime.PREFILL, StepLoad().with_chunk(0, 64))) == pytest.approx(0.05, rel=0.1)


def test_kinds_with_few_steps_are_named() -> None:
    """Their figures are the least sure ones."""
    found = structs.replace(machine(), steps={Regime.DECODE: 500, Regime.MIXED: 80, Regime.PREFILL: 7})
    assert found.lines()[1:] == ["note: only 7 steps of kind prefill were measured; those of kind mixed help to fit it"]
    found = structs.replace(machine(), steps={Regime.DECODE: 9, Regime.MIXED: 80, Regime.PREFILL: 64})
    assert found.lines()[1:] == ["note: only 9 steps of kind decode were measured"]


def test_a_fit_needs_steps() -> None:
    with pytest.raises(TraceError, match="3 steps are too few"):
        fit(Observed(steps(3), [], []), SETUP)


def test_a_saved_machine_is_the_same(tmp_path: Path) -> None:
    """Residuals are kept in the file: without them the high percentiles are lost."""
    write_machine(machine(), tmp_path / "machine.json")
    found = read_machine(tmp_path / "machine.json")
    assert found == machine()
    assert len(found.world.residuals) == 120
    assert "no step of kind prefill" in found.lines()[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "neither a trace nor a machine"),
        ("no", "neither a trace nor a machine"),
        (None, "cannot read"),
        ('"format":"x"', "has the format 'x'"),
        ('"depth":"a"', "neither a trace nor a machine"),
    ],
)
def test_files_that_are_no_machine(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "machine.json"
    if content is not None and content[0] == '"':
        write_machine(machine(), path)
        name, _, value = content.partition(":")
        fields = json.loads(path.read_text()) | {json.loads(name): json.loads(value)}
        content = json.dumps(fields)
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_machine(path)


def test_options_change_what_they_say_and_what_follows() -> None:
    """A setting that has no effect would be recommended for nothing."""
    plain = machine()
    found = changed(plain, {"chunked_prefill_size": 256, "max_total_tokens": 1024, "schedule_policy": "lpm"})
    assert found.setup.limits.chunked_prefill_size == 256
    assert found.setup.limits.policy == "lpm"
    assert found.setup.limits.max_running_requests == 8, "as it was measured"
    assert found.setup.num_pages == 32
    paced = changed(plain, {"itl_target": "auto"}).setup.limits
    assert (paced.itl_target, paced.chunked_prefill_size > 64) == (ITL_AUTO, True)
    assert changed(plain, {"page_size": 16}).setup.num_pages == 512, "as many tokens as before"
    assert changed(plain, {"depth": 2}).depth == 2
    with pytest.raises(ConfigError, match="dtype cannot be simulated"):
        changed(plain, {"dtype": "float32"})


def test_predicted_machines_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure of a machine that was never measured must not be taken for one that was."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = predicted_machine("h100", tmp_path)
    one = found.world.modelled(StepWork(Regime.DECODE, StepLoad(1, 1, 1000)))
    assert 0.006 < one < 0.012, "15 GB of weights at 2.7 TB/s, and 2 ms"
    assert main(["simulate", "--hardware", "h100", "--model", str(tmp_path), "--request-rate", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("predicted, not measured") == 2
    flags = ["--windows", "2", "--window-seconds", "3", "--json", str(tmp_path / "out.json")]
    assert main(["simulate", "--hardware", "h100", "--model", str(tmp_path), "--request-rate", "2", *flags]) == 0
    assert capsys.readouterr().out.count("predicted, not measured") == 2
    assert json.loads((tmp_path / "out.json").read_text())["kind"] == "predicted, not measured"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hardware", "h1000"], "--hardware takes h200, h100"),
        (["--hardware", "1e12,1e12"], "--hardware takes"),
        (["--hardware", "1e14,1e12,12e9"], "does not fit into the 12 GB"),
        (["--hardware", "h100", "--calibrate", "x"], "both say how long"),
        ([], "--model .* needs --hardware"),
    ],
)
def test_machines_that_cannot_be(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    status = main(["simulate", "--request-rate", "2", "--model", str(tmp_path), *flags])
    assert status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error)


@pytest.mark.parametrize(
    ("more", "context"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16384),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
    ],
)
def test_a_predicted_machine_knows_the_context_of_its_model(
    tmp_path: Path, more: dict[str, object], context: int
) -> None:
    """Longer requests would be simulated, and never be served."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | more))
    assert predicted_machine("h100", tmp_path).max_model_len == context


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "factor must be a number above 0, got '4'"),
    ],
)
def test_a_model_without_a_context_is_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | more))
    with pytest.raises(ConfigError, match=said):
        predicted_machine("h100", tmp_path)


def test_quantised_weights_are_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A decode would take twice as long as their bytes do."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "awq"}}))
    assert main(["simulate", "--request-rate", "2", "--hardware", "h100", "--model", str(tmp_path)]) == 2
    assert "is of quantised weights" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["simulate", "--request-rate", "2"], ["tune", "none.csv", "--slo", "ttft_p95<1s"]])
def test_a_pipeline_cannot_be_simulated(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps overlap, so that one after the other takes longer than they did."""
    setup = replace(SETUP, limits=replace(LIMITS, pipeline_stages=2, lookahead=0))
    write_machine(structs.replace(machine(), setup=setup, depth=3), tmp_path / "machine.json")
    assert main([*command, "--calibrate", str(tmp_path / "machine.json")]) == 2
    assert "m was measured with 2 pipeline stages" in capsys.readouterr().err


def test_blocks_cannot_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many passes a block takes is the model's to say, and a simulation has none."""
    setup = replace(SETUP, limits=replace(LIMITS, block_size=4))
    write_machine(structs.replace(machine(), setup=setup), tmp_path / "machine.json")
    assert main(["simulate", "--request-rate", "2", "--calibrate", str(tmp_path / "machine.json")]) == 2
    assert "m fills in blocks of 4 tokens" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_no_model() -> None:
    """A misspelt name would be looked up on the hub."""
    with pytest.raises(ConfigError, match=r"cannot read nofile\.jsonl"):
        machine_of("nofile.jsonl")


def test_a_model_is_measured_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model is served for a moment; its trace names this machine."""
    path = tmp_path / "machine.json"
    assert (
        main(["simulate", "--calibrate", str(any_checkpoint()), "--request-rate", "9", "--save-machine", str(path)])
        == 0
    )
    found = read_machine(path)
    assert found.is_measured
    assert found.steps[Regime.DECODE] > 10
    assert found.steps[Regime.MIXED] > 10
    assert "any-model on" in capsys.readouterr().out
