"""The table of engines on a CPU: who is compared with whom, and what an interrupted run still has to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cpu.record import FORMAT, Record
from benchmarks.cpu.rows import ROWS, Session, sessions
from benchmarks.cpu.session import measure_session
from benchmarks.cpu.table import table
from benchmarks.cpu_peers import main
from benchmarks.peers.peer import Settings
from sluice.bench.options import options_from
from sluice.config import ConfigError

NAMED = {row.name: row for row in ROWS}


def record(path: Path, rows: dict[str, Any]) -> Record:
    rates = {"read_bytes_per_second": 40e9, "bfloat16_flop_per_second": 1e12}
    path.write_text(json.dumps({"format": FORMAT, "threads": 2, "rates": rates, "rows": rows, "engines": {}}))
    return Record.opened(path, 2)


def runs(number: str, *values: float) -> list[dict[str, Any]]:
    return [{"values": {number: value}} for value in values]


def test_every_row_is_a_workload() -> None:
    for row in ROWS:
        options_from(dict(row.given))
    assert all(row.undisturbed in NAMED for row in ROWS if row.is_disturbed)


def test_rows_of_equal_settings_share_a_start(tmp_path: Path) -> None:
    """Starting vLLM takes longer than most rows."""
    found = sessions(ROWS, tmp_path, 2)
    assert [len(session.rows) for session in found] == [5, 1, 1]
    assert [session.settings.budget for session in found] == [2048, 256, None]


def test_ours_is_compared_with_the_best_peer(tmp_path: Path) -> None:
    """The best differs from row to row, and a rate is the better the larger it is."""
    itl, rate = "ITL p99", "tokens/s"
    found = record(
        tmp_path / "a.json",
        {
            "rosellm": {
                "sluice": [{"values": {itl: 0.030, rate: 600.0}}, {"values": {itl: 0.050, rate: 500.0}}],
                "vllm": [{"values": {itl: 0.080, rate: 500.0}}],
                "openvino": [{"values": {itl: 0.100, rate: 640.0}}],
            }
        },
    )
    shown = table(found, [NAMED["rosellm"]], "sluice", ["sluice", "vllm", "openvino", "transformers"]).splitlines()
    (line,) = (line for line in shown if itl in line)
    assert line.split("|")[2:9] == [" ITL p99 ", " 40.0 ", " 80.0 ", " 100.0 ", " failed ", " 0.50 ", " <= 0.70 "]
    assert line.endswith("| met |")
    (line,) = (line for line in shown if rate in line)
    assert line.endswith("| 0.86 | >= 1.00 | missed |")


def test_the_machines_limits(tmp_path: Path) -> None:
    number = "TPOT p50"
    found = record(
        tmp_path / "a.json",
        {"decode-1": {"sluice": runs(number, 0.0298)}, "neighbour": {"sluice": runs(number, 0.0596)}},
    )
    shown = table(found, ROWS, "sluice", ["sluice", "vllm"])
    assert "1.00x the time to read the weights once" in shown
    assert "one processor taken: 2.00x the undisturbed step" in shown


def test_a_turn_is_measured_once(tmp_path: Path) -> None:
    """An interrupted run that began anew would take half an hour each time; here an engine would have to be started,
    and there is no checkpoint."""
    path = tmp_path / "a.json"
    found = record(path, {"decode-1": {"vllm": runs("ITL p50", 0.1)}})
    session = Session(Settings(tmp_path / "nothing"), (NAMED["decode-1"],))
    measure_session(found, session, "vllm", 0)
    assert found.content["rows"]["decode-1"]["vllm"] == runs("ITL p50", 0.1)


def test_what_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    found = record(tmp_path / "a.json", {})
    measure_session(found, Session(Settings(tmp_path / "nothing"), (NAMED["decode-1"],)), "sluice", 0)
    (run,) = Record.opened(tmp_path / "a.json", 2).content["rows"]["decode-1"]["sluice"]
    assert run["values"] == {}
    assert "the server ended with" in run["error"]


@pytest.mark.parametrize(("content", "problem"), [("{", "no JSON"), ("{}", "no result of this script")])
def test_another_file_is_not_written_over(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        Record.opened(path, 2)
    assert path.read_text() == content


def test_results_of_other_threads_are_not_mixed_in(tmp_path: Path) -> None:
    record(tmp_path / "a.json", {})
    with pytest.raises(ConfigError, match="measured with 2 threads, not 1"):
        Record.opened(tmp_path / "a.json", 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rows", "decode-1,nothing"], "--rows must be among decode-1, "),
        (["--peers", "sluice"], "--peers must be among vllm, "),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--checkpoints", "nowhere"], "--checkpoints must hold qwen3-0.6b"),
    ],
)
def test_a_wrong_command_line_starts_nothing(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", str(tmp_path / "a.json"), *arguments]) == 2
    assert problem in capsys.readouterr().err
