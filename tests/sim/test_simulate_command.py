"""`sluice simulate`: the files that it reads and writes, and what it refuses before it simulates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from sluice.cli import main
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.machine import Machine, read_machine, write_machine
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=128, max_batch_tokens=136, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=64, page_size=16)
WORLD = World(dict.fromkeys(Regime, (1000.0, 10.0, 0.0, 0.0, 0.0, 0.0)))
MACHINE = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a machine and a minute of traffic."""
    write_machine(MACHINE, tmp_path / "machine.json")
    rows = "".join(f"{index},{20 + index},{1 + index % 7}\n" for index in range(60))
    (tmp_path / "t.csv").write_text(VIDUR + rows)
    return tmp_path


def simulate(folder: Path, *flags: str) -> int:
    return main(["simulate", str(folder / "t.csv"), "--calibrate", str(folder / "machine.json"), *flags])


@pytest.mark.parametrize("output", ["--json", "--html", "--save-machine"])
@pytest.mark.parametrize("name", ["t.csv", "machine.json"])
def test_no_output_replaces_what_is_read(
    folder: Path, output: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A day of recorded traffic would be lost."""
    before = (folder / name).read_bytes()
    assert simulate(folder, output, str(folder / "." / name)) == 2
    assert f"{output} {folder / name} would replace" in capsys.readouterr().err
    assert (folder / name).read_bytes() == before


def test_two_outputs_are_two_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--json", str(folder / "out"), "--html", str(folder / "out")) == 2
    assert "--html" in capsys.readouterr().err


def test_a_named_format_holds_for_the_report(folder: Path) -> None:
    """The format would be looked for again, and not be found, when all was simulated."""
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens,note\n0,30,4,x\n1,30,4,y\n"
    (folder / "t.csv").write_text(rows)
    assert simulate(folder, "--format", "vidur", "--html", str(folder / "o.html")) == 0
    assert (folder / "o.html").read_text()


def test_a_saved_machine_is_the_one_that_was_measured(folder: Path) -> None:
    """Saved with an option of one simulation, its engine would be called measured with it."""
    assert simulate(folder, "--chunked-prefill-size", "64", "--save-machine", str(folder / "again.json")) == 0
    assert read_machine(folder / "again.json") == MACHINE


def test_a_report_of_windows_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that cannot be read is not noticed yet."""
    flags = ["--windows", "2", "--html", str(tmp_path / "o.html"), "--calibrate", str(tmp_path / "none.json")]
    assert main(["simulate", str(tmp_path / "none.csv"), *flags]) == 2
    assert "--html shows single requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("0", "--max-tokens must be at least 1, got 0"),
        ("100000", "line 2: .*max_tokens must be at most 1024 tokens together .the KV pool., got 20 and 100000"),
    ],
)
def test_answers_that_no_engine_would_give_are_refused(
    folder: Path, value: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All requests would fail, and the figures of none would be 0."""
    assert simulate(folder, "--max-tokens", value) != 0
    assert re.search(error, capsys.readouterr().err)


@pytest.mark.parametrize(("skip", "status"), [([], 1), (["--skip", "too-long"], 0)])
def test_requests_beyond_the_models_context_are_refused_by_row(
    folder: Path, skip: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pool has room for them, and the model that is served would not take them."""
    write_machine(structs.replace(MACHINE, max_model_len=70), folder / "machine.json")
    assert simulate(folder, *skip) == status
    error = capsys.readouterr().err
    if skip:
        assert "are too-long" in error
    else:
        assert "line 48: num_prefill_tokens and num_decode_tokens must be at most 70 tokens together" in error
        assert "(the model's context), got 66 and 5" in error


def test_synthetic_requests_beyond_the_models_context_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_machine(structs.replace(MACHINE, max_model_len=300), folder / "machine.json")
    base = ["simulate", "--calibrate", str(folder / "machine.json"), "--request-rate", "5", "--output-tokens", "50"]
    assert main([*base, "--prompt-tokens", "250"]) == 0
    assert main([*base, "--prompt-tokens", "251"]) == 2
    error = (
        "request 1 of the synthetic workload has 251 prompt tokens and asks for 50; together they must be at most 300"
    )
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("command", [["simulate"], ["tune", "--slo", "ttft_p95<1s"]])
def test_traffic_without_a_machine_is_said(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is good, and no broken machine."""
    assert main([command[0], str(folder / "t.csv"), *command[1:]]) == 2
    assert "t.csv (vidur) does not say how long steps take; give --hardware, or --calibrate" in capsys.readouterr().err


def test_the_help_shows_what_holds_in_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    """The defaults of a server hold for no machine that was measured, and closed loops cannot be simulated."""
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"--chunked-prefill-size N [^()]*\(default: as measured; with --hardware that of a server\)", shown
    )
    assert "--concurrency" not in shown
    assert "--background" not in shown
    assert "--ignore-eos" not in shown
    assert "--turns" in shown


def test_a_flag_that_would_change_nothing_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Simulated answers have their full length, whatever a model would do."""
    with pytest.raises(SystemExit):
        main(["simulate", "--calibrate", "machine.json", "--request-rate", "2", "--ignore-eos"])
    assert "unrecognized arguments: --ignore-eos" in capsys.readouterr().err


def test_results_name_the_workload_and_the_machine(folder: Path) -> None:
    """A file must say what it is a result of."""
    out, machine = folder / "out.json", str(folder / "machine.json")
    flags = ["--request-rate", "9", "--prompt-tokens", "30", "--num-requests", "5", "--json", str(out)]
    assert main(["simulate", "--calibrate", machine, *flags]) == 0
    settings = json.loads(out.read_bytes())["settings"]
    assert settings["simulation"]["machine"] == {"calibrate": machine}
    assert (settings["workload"]["request_rate"], settings["workload"]["prompt_tokens"]) == (9, "30")
    assert simulate(folder, "--windows", "3", "--window-seconds", "5", "--json", str(out)) == 0
    settings = json.loads(out.read_bytes())["settings"]
    assert settings["simulation"]["source"] == str(folder / "t.csv")
    assert settings["simulation"]["part"]["windows"] == 3
