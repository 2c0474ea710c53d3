"""The table of engines on a CPU: who is compared with whom, and what an interrupted run still has to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import cpu_peers
from benchmarks.checkpoint.shapes import SHAPES
from benchmarks.cpu.contenders import Contender
from benchmarks.cpu.machine import Probe, Rates
from benchmarks.cpu.ratios import Quartiles, over_floor, throughput_ratio, times_as_fast
from benchmarks.cpu.record import Measured, Record
from benchmarks.cpu.rows import ROWS, STEP, Session, sessions
from benchmarks.cpu.session import measure_session
from benchmarks.cpu.table import table
from benchmarks.make_checkpoint import write_checkpoint
from benchmarks.peers.llama_cpp_server import LlamaCpp
from benchmarks.peers.peer import Settings
from sluice.bench.options import options_from
from sluice.config import ConfigError

NAMED = {row.name: row for row in ROWS}
OURS, PEER = Contender("sluice", "int8"), Contender("openvino", "int8")
RATES = Rates(read_bytes_per_second=40e9, bfloat16_flop_per_second=1e12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    write_checkpoint(folder, SHAPES["qwen3-0.6b"].tiny(), dtype="float32", seed=1)
    return folder


@pytest.fixture
def record(checkpoint: Path, tmp_path: Path) -> Record:
    return Record.opened(tmp_path / "a.json", checkpoint, 2)


def add(record: Record, row: str, contender: Contender, values: Sequence[float | None]) -> None:
    number = NAMED[row].numbers[0].name
    for value in values:
        record.add(row, contender.label, Measured({} if value is None else {number: value}, RATES, 0.5))


def test_every_row_is_a_workload() -> None:
    for row in ROWS:
        options_from(dict(row.given))


def test_rows_of_equal_settings_share_a_start(tmp_path: Path) -> None:
    """Starting an engine takes longer than most rows."""
    found = sessions(ROWS, tmp_path, 2)
    assert [(session.settings.budget, session.settings.max_running) for session in found] == [
        (2048, 64),
        (128, 8),
        (None, 32),
    ]
    assert sum(len(session.rows) for session in found) == len(ROWS)


def test_ratios_are_those_of_one_turn(record: Record) -> None:
    """The machine became half as fast, then failed for the peer: a ratio of medians would be 1, or 3."""
    add(record, "decode-1", OURS, [0.010, 0.020, 0.030])
    add(record, "decode-1", PEER, [0.015, 0.030, None])
    row = NAMED["decode-1"]
    found = times_as_fast(record, row, row.numbers[0], OURS, PEER)
    assert found == Quartiles(*[pytest.approx(1.5)] * 3)
    assert times_as_fast(record, row, row.numbers[0], PEER, OURS) == Quartiles(*[pytest.approx(1 / 1.5)] * 3)


def test_the_spread_of_ratios(record: Record) -> None:
    add(record, "prefill", OURS, [1.0] * 5)
    add(record, "prefill", PEER, [1.0, 1.1, 1.2, 1.3, 9.0])
    row = NAMED["prefill"]
    found = times_as_fast(record, row, row.numbers[0], OURS, PEER)
    assert found == Quartiles(pytest.approx(1.1), pytest.approx(1.2), pytest.approx(1.3))
    (line,) = (line for line in table(record, [row], [OURS, PEER]).splitlines() if "TTFT" in line)
    assert "| 1,200.0 1.20x (1.10-1.30) |" in line


def test_a_rate_is_the_better_the_larger_it_is(record: Record) -> None:
    row = NAMED["rosellm"]
    (number,) = (number for number in row.numbers if number.is_rate)
    for contender, value in ((OURS, 600.0), (PEER, 400.0)):
        record.add("rosellm", contender.label, Measured({number.name: value}, RATES, 0.5))
    assert times_as_fast(record, row, number, OURS, PEER) == Quartiles(1.5, 1.5, 1.5)


def test_the_floor_is_that_of_the_turn(record: Record) -> None:
    """The weights take 10 ms to read, at the rate that was measured just before."""
    add(record, "decode-8", OURS, [0.012, 0.012])
    row = NAMED["decode-8"]
    assert over_floor(record, row, row.numbers[0], OURS) is None, "the engine did not say how large its weights are"
    record.describe(OURS.label, {}, 400_000_000)
    assert over_floor(record, row, row.numbers[0], OURS) == Quartiles(*[pytest.approx(1.2)] * 3)


def test_the_throughput_of_batches(record: Record) -> None:
    add(record, "decode-32", OURS, [0.032, 0.064])
    add(record, "decode-64", OURS, [0.064, 0.064])
    found = throughput_ratio(record, NAMED["decode-64"], NAMED["decode-32"], (64, 32), OURS)
    assert found is not None
    assert found.median == pytest.approx(1.5)
    assert "batch 64 over batch 32: 1.50x" in table(record, ROWS, [OURS, PEER])


def test_a_turn_is_measured_once(record: Record) -> None:
    """An interrupted run that began anew would take half an hour each time; here an engine would have to be started,
    and there is no checkpoint."""
    add(record, "decode-1", PEER, [0.1])
    session = Session(Settings(Path("nothing")), (NAMED["decode-1"], NAMED["decode-64"]))
    measure_session(record, session, [PEER], 1, Probe(1, (1 << 12, 1)))
    assert len(record.runs("decode-1", PEER.label)) == 1
    assert record.runs("decode-64", PEER.label) == [], "a row of ours alone"


@pytest.mark.slow
def test_what_does_not_start_is_recorded(record: Record, tmp_path: Path) -> None:
    session = Session(Settings(tmp_path / "nothing"), (NAMED["decode-1"],))
    measure_session(record, session, [replace(OURS, weights="bf16")], 1, Probe(1, (1 << 12, 1)))
    (run,) = record.runs("decode-1", "sluice:bf16")
    assert run.values == {}
    assert "the server ended with" in str(run.error)
    assert "failed" in table(record, [NAMED["decode-1"]], [replace(OURS, weights="bf16")])


@pytest.mark.slow
def test_a_small_comparison_from_the_command_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One start serves every turn of all rows, and both numbers of the machine stand beside each of them."""
    monkeypatch.setattr(cpu_peers, "Probe", lambda threads: Probe(threads, (1 << 16, 1)))
    out = tmp_path / "b.json"
    arguments = ["--checkpoint", str(checkpoint), "--json", str(out), "--contenders", "sluice:bf16"]
    assert cpu_peers.main([*arguments, "--rows", "decode-1,decode-8", "--turns", "2", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("starting sluice:bf16") == 1
    assert "| decode, batch 8 | decode step, ms | " in shown.out
    found = Record.opened(out, checkpoint, 1)
    runs = found.runs("decode-8", "sluice:bf16")
    assert len(runs) == 2
    for run in runs:
        assert run.error is None
        assert (run.values[STEP] or 0) > 0
        assert run.rates is not None
    assert (found.weights_bytes("sluice:bf16") or 0) > 2 * found.layer_weights


@pytest.mark.parametrize(("content", "problem"), [("{", "no JSON"), ("{}", "no result of this script")])
def test_another_file_is_not_written_over(content: str, problem: str, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        Record.opened(path, checkpoint, 2)
    assert path.read_text() == content


def test_other_results_are_not_mixed_in(record: Record, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="measured with threads 2, not 1"):
        Record.opened(record.path, checkpoint, 1)
    with pytest.raises(ConfigError, match="measured with checkpoint tiny, not other"):
        Record.opened(record.path, checkpoint.with_name("other"), 2)


def test_quantised_weights_of_llama_cpp_have_files_of_their_own(checkpoint: Path) -> None:
    settings = Settings(checkpoint)
    lines = [" ".join(LlamaCpp().serve(replace(settings, weights=name), 1).arguments) for name in LlamaCpp.weights]
    assert all(f"tiny-{name}.gguf" in line for name, line in zip(LlamaCpp.weights, lines, strict=True))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rows", "decode-1,nothing"], "--rows must be among decode-1, "),
        (["--contenders", "exllama:int4"], "ENGINE:WEIGHTS with ENGINE among sluice, "),
        (
            ["--contenders", "llama.cpp:int8"],
            "llama.cpp has the weights bf16, q8_0, q4_0, q4_k_m, got 'llama.cpp:int8'",
        ),
        (["--turns", "0"], "--turns must be at least 1, got 0"),
        (["--checkpoint", "nowhere"], "--checkpoint must be a folder of make_checkpoint.py, got nowhere"),
    ],
)
def test_a_wrong_command_line_starts_nothing(
    arguments: list[str], problem: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--json", str(tmp_path / "a.json"), "--checkpoint", str(checkpoint), *arguments]
    assert cpu_peers.main(given) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()
