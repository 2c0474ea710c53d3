"""The command lines of `sluice bench` and `sluice compare`: what they accept, write, say, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import cli
from sse_server import Call, scripted_in_a_thread, stream_at_once


def run(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(str(end.code))


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status and the one line of a command that must fail."""
    status = run(*arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return status, err


def test_bench_writes_what_it_can_show_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, first, second = (str(tmp_path / name) for name in ("a.json", "a.html", "b.html"))
    with scripted_in_a_thread() as server:
        arguments = ("--num-requests", "3", "--max-new-tokens", "4", "--goodput", "ttft:60000", "itl:60000")
        assert run("bench", "--url", server.url, *arguments, "--json", written, "--html", first) == 0
    shown = capsys.readouterr()
    assert "3 requests, 0 failed" in shown.out
    assert "goodput         3 requests" in shown.out
    assert shown.err == ""
    content = json.loads(Path(written).read_text())
    assert content["settings"]["workload"]["max_new_tokens"] == 4
    assert content["summaries"][0]["output_tokens"] == 12
    assert len(content["runs"][0]["requests"][0]["arrivals"]) == 4
    assert run("bench", "--from", written, "--html", second) == 0
    assert capsys.readouterr().out == shown.out
    assert Path(first).read_text() == Path(second).read_text()


def test_compare_measures_in_turns_and_keeps_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, ratios = tmp_path / "kept", tmp_path / "ratios.json"
    with scripted_in_a_thread() as one, scripted_in_a_thread() as other:
        urls = ("--url", one.url, "--url", other.url)
        options = ("--repeats", "2", "--num-requests", "2", "--max-new-tokens", "3")
        assert run("compare", *urls, *options, "--keep", str(prefix), "--json", str(ratios)) == 0
    measured = capsys.readouterr().out
    assert "resampled over pairs of runs" in measured
    assert json.loads(ratios.read_text())["runs"] == [2, 2]
    assert run("compare", f"{prefix}-a.json", f"{prefix}-b.json") == 0
    assert "resampled over runs" in capsys.readouterr().out


def test_a_run_in_which_all_fail_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(call: Call) -> None:
        await call.head(429, "application/json")
        await call.chunk(b'{"error": {"message": "slow down"}}')
        await call.chunk(b"")

    with scripted_in_a_thread(refuse) as server:
        status = run("bench", "--url", server.url, "--num-requests", "2", "--warmup", "0")
    out, err = capsys.readouterr()
    assert status == 1
    assert err == "sluice bench: error: all requests failed: HTTP 429: slow down\n"
    assert "2 x HTTP 429: slow down" in out


def test_some_failures_do_not_fail_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    async def every_second(call: Call) -> None:
        if call.number % 2:
            call.writer.close()
        else:
            await stream_at_once(call)

    with scripted_in_a_thread(every_second) as server:
        status = run("bench", "--url", server.url, "--num-requests", "4", "--concurrency", "1", "--warmup", "0")
    assert status == 0
    assert "4 requests, 2 failed" in capsys.readouterr().out


def test_a_server_that_streams_nothing_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def whole(call: Call) -> None:
        await call.head()
        await call.text("all of it", finish="length")
        await call.end(completion_tokens=5)

    with scripted_in_a_thread(whole) as server:
        status = run("bench", "--url", server.url, "--num-requests", "2", "--warmup", "0")
    out, err = capsys.readouterr()
    assert status == 1
    assert "the server does not stream" in err
    assert "2 requests, 0 failed" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench"], "give either --url"),
        (["bench", "--url", "http://a", "--model", "m"], "give either --url"),
        (["bench", "--url", "a"], "--url must be like http://localhost:8000, got 'a'"),
        (["bench", "--url", "http://user:secret@a"], "--url must not hold a user or a password"),
        (["bench", "--url", "http://a", "--page-size", "4"], "--page-size is an option of the engine"),
        (["bench", "--model", "m", "--endpoint", "chat"], "--endpoint chat and --prompt-format text need --url"),
        (["bench", "--model", "m", "--api-key", "k"], "--api-key needs --url, got --model"),
        (["bench", "--model", "m", "--page-size", "3"], "page"),
        (["bench", "--url", "http://a", "--preset", "x"], "--preset must be one of rosellm, "),
        (["bench", "--url", "http://a", "--goodput", "speed:1"], "--goodput takes NAME:MILLISECONDS"),
        (["bench", "--url", "http://a", "--prompt-tokens", "many"], "--prompt-tokens must be a number of tokens"),
        (["bench", "--url", "http://a", "--json", "nowhere/at/all.json"], "--json must name a file in a folder that"),
        (["bench", "--url", "http://a", "--html", "."], "--html must name a file"),
        (["bench", "--url", "http://a", "--api-key", "a\nb"], "--api-key must be printable ASCII"),
        (["bench", "--from", "a.json", "--url", "http://a"], "--from measures nothing: --url is not accepted with it"),
        (["compare"], "give two files, or --url twice"),
        (["compare", "a.json"], "give two files, or --url twice"),
        (["compare", "a.json", "b.json", "--url", "http://a"], "give two files, or --url twice"),
        (["compare", "a.json", "b.json", "--repeats", "3"], "--repeats needs two --url"),
        (["compare", "--url", "http://a"], "give two files, or --url twice"),
    ],
)
def test_wrong_command_lines(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    status, message = failure(capsys, *arguments)
    assert said in message
    assert status == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "--from", "nothing.json"], "cannot read nothing.json"),
        (["compare", "nothing.json", "nothing.json"], "cannot read nothing.json"),
        (["bench", "--model", "no/such/folder"], "no/such/folder"),
        (
            ["bench", "--url", "http://a.invalid", "--tokenizer", "nothing"],
            "--tokenizer: nothing has no tokenizer.json",
        ),
    ],
)
def test_what_cannot_be_done(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    status, message = failure(capsys, *arguments)
    assert said in message
    assert status == 1


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_help_loads_nothing(command: str) -> None:
    program = (
        "import sys; from sluice.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'starlette', 'msgspec', 'tokenizers', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, command, "--help"], capture_output=True, text=True, check=True
    )
    assert "--request-rate" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 110


def test_the_report_shows_how_well_steps_were_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an engine in this process, and of a server by the trace that it wrote: how far to trust an ITL target."""
    trace, first, second, kept = (str(tmp_path / name) for name in ("trace.jsonl", "a.html", "b.html", "kept.json"))
    sizes = ("--max-total-tokens", "2048", "--num-requests", "3", "--prompt-tokens", "60", "--max-new-tokens", "4")
    here = ("--model", "", "--itl-target", "1s", *sizes)
    assert run("bench", *here, "--trace", trace, "--html", first, "--json", kept) == 0
    assert run("bench", "--from", kept, "--trace", trace, "--html", second) == 0
    capsys.readouterr()
    for path in (first, second):
        content = Path(path).read_text()
        assert "Predicted and measured steps" in content
        assert "ITL target of 1000 ms" in content
    assert run("bench", "--from", kept, "--html", second) == 0
    assert "Predicted and measured steps" not in Path(second).read_text()
    capsys.readouterr()
    assert "name one with --html" in failure(capsys, "bench", "--from", kept, "--trace", trace)[1]
    status, said = failure(capsys, "bench", "--from", kept, "--html", second, "--trace", str(tmp_path / "none"))
    assert (status, "must name the file that the server writes" in said) == (2, True)
    assert "not a trace" in failure(capsys, "bench", "--from", kept, "--html", second, "--trace", kept)[1]
