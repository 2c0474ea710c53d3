"""`sluice trace` and `sluice replay` as people meet them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recorded import play, recorded_engine, trace_file
from sluice import cli
from sluice.engine.messages import Submit
from sluice.testing import Faults, resolved
from worlds import Arrival, World, limits_of

WORLD = World(limits_of(chunk=64, batch=80), num_pages=64, page_size=4)
ARRIVALS = [Arrival(0, Submit(0, (1, 0, 1), resolved(12))), Arrival(3, Submit(1, (0,) * 60, resolved(2)))]
"""A stream, and a prompt of 60 tokens that it waits for: 2 + 6 ms."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    play(recorded_engine(WORLD, trace_file(path, WORLD)), ARRIVALS)
    return path


def run(*arguments: object) -> int:
    try:
        return cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(str(end.code))


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = run(*arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return status, err


def test_the_step_that_made_a_stream_wait_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", path, "--gap-ms", 5) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "gaps of more than 5 ms between two tokens of a stream: 1\n" in out
    assert "8.0 ms at 0.003 s: request 0 waited; 1 step took 8.0 ms of it\n" in out
    assert "step 3, 8.0 ms: request 1 prefilled 60 tokens from 0, 1 decode" in out
    assert "steps     12: 1 mixed (8.3%), 10 of decodes, 1 of prefill" in out
    assert "requests  2: 2 length" in out
    assert "\nrequest " not in out
    assert run("trace", path) == 0
    assert "gaps of more than 100 ms between two tokens of a stream: 0" in capsys.readouterr().out


def test_a_line_for_each_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", path, "--requests") == 0
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "request"
    assert first.split() == ["0", "0.000", "3", "0", "12", "1", "0", "0.0", "1.3", "1.0", "8.0", "length"]
    assert second.split() == ["1", "0.003", "60", "0", "2", "1", "0", "0.0", "8.0", "2.0", "2.0", "length"]


def test_all_of_it_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", path, "--json", "--gap-ms", 5) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["mixed_steps"], summary["prefill_tokens"]) == (12, 1, 63)
    assert summary["gaps"][0]["causes"][0]["prefills"] == [{"request_id": 1, "start": 0, "length": 60}]
    assert [row["request_id"] for row in summary["table"]] == [0, 1]


def test_a_timeline_is_written(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "timeline.json"
    assert run("trace", path, "--perfetto", out) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert f"{len(events)} events in {out}" in capsys.readouterr().err
    assert {event["name"] for event in events} > {"prefill 60", "decode", "finish: length"}


def test_a_replay(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", path) == 0
    assert "12 steps planned again, every plan equal byte for byte (26 calls)" in capsys.readouterr().out


def test_no_torch_is_loaded(path: Path) -> None:
    """A trace is read where it was copied to, which need not be a machine for models."""
    program = (
        "import sys; from sluice.cli import main\n"
        "assert main(['trace', sys.argv[1]]) == main(['replay', sys.argv[1]]) == 0\n"
        "assert not {'torch', 'starlette', 'zmq', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True)


def test_a_replay_that_differs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(path.read_text().replace('"chunked_prefill_size":64', '"chunked_prefill_size":32'))
    assert run("replay", path) == 1
    first, *values = capsys.readouterr().out.splitlines()
    assert first.endswith("diverges after 3 equal steps: step 3, planned (call 8, line 7): bound_by")
    assert values == ["  recorded  nothing", "  replayed  chunked_prefill_size"]


@pytest.mark.parametrize("command", ["trace", "replay"])
def test_a_cut_file_is_used_up_to_the_cut(path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    assert run(command, path) == 0
    out, err = capsys.readouterr()
    assert err == f"sluice {command}: note: {path} ends within a line; everything before it is used\n"
    assert "11" in out.splitlines()[0 if command == "replay" else 1]


@pytest.mark.parametrize("command", ["trace", "replay"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{}\n", "line 1: not a trace"),
        ('{"kind":"header","version":9}\n', "line 1: the trace has version 9"),
    ],
)
def test_what_is_no_trace(
    tmp_path: Path, command: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    status, message = failure(capsys, command, path)
    assert status == 1
    assert said in message
    assert message.startswith(f"sluice {command}: error: ")


@pytest.mark.parametrize("command", ["trace", "replay"])
def test_a_broken_line_is_named(path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], '{"kind":"riddle"}\n', *lines[3:]]))
    status, message = failure(capsys, command, path)
    assert (status, "line 4: unknown kind of record 'riddle'" in message) == (1, True)


def test_wrong_command_lines(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, message = failure(capsys, "trace", path, "--gap-ms", "-1")
    assert (status, "--gap-ms must be a number of at least 0, got -1.0" in message) == (2, True)
    assert failure(capsys, "trace", path, "--gap-ms", "nan")[0] == 2
    status, message = failure(capsys, "trace", path, "--perfetto", path)
    assert (status, "is the trace itself" in message) == (2, True)
    assert path.read_text() != ""
    assert failure(capsys, "replay")[0] == 2
    assert failure(capsys, "trace", tmp_path / "nothing")[0] == 1
    assert run("trace", path, "--perfetto", tmp_path / "nowhere" / "out") == 2
    assert "No such file" in capsys.readouterr().err


def test_failures_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    faults = Faults(wait_raises=frozenset({1}), row_fails={3: 0})
    arrivals = [Arrival(i, Submit(i, (1,) * 3, resolved(3))) for i in range(0, 9, 3)]
    arrivals.append(Arrival(9, Submit(99, (1,) * 300, resolved(3))))
    play(recorded_engine(WORLD, trace_file(path, WORLD), faults=faults), arrivals)
    assert run("trace", path) == 0
    out = capsys.readouterr().out
    assert "failures: 3\n" in out
    assert "  step 1: the step failed: InjectedFault: wait 1\n" in out
    assert "  step 3, request 3: row 0 failed\n" in out
    assert "  request 99 refused: prompt of 300 tokens" in out
    assert "requests  3: 2 error, 1 length\n" in out
