"""Two clients beside each other: the same requests, the same names for the same numbers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench_makers import record, run_of
from benchmarks import agreement
from benchmarks.agreement import LIMIT, NAMES, TAIL_LIMIT, Row, figures_of, rows
from benchmarks.aiperf_client import Figures, Sending, command, read_figures, write_inputs
from benchmarks.checkpoint.words import write_word_tokenizer
from sluice.bench import BenchError
from sluice.bench.driver import Timer
from sluice.bench.measure import measure_once, server_target, workload_of
from sluice.bench.options import options_from
from sluice.text.tokenizer_files import load_tokenizer
from sse_server import scripted

OPTIONS = options_from(
    {"num_requests": 3, "concurrency": 1, "prompt_tokens": "uniform:3:9", "output_tokens": "2", "ignore_eos": True}
)
FIGURES = Figures(3, 0, 20, 6, dict.fromkeys(NAMES, 1.0))


def test_the_other_client_gets_the_bodies_that_ours_sends(tmp_path: Path) -> None:
    """Other prompts, or the prompts of another round, would measure something else."""

    async def send() -> tuple[list[dict[str, Any]], list[bytes]]:
        async with scripted() as server:
            target = await server_target(server.url, OPTIONS, Timer())
            await measure_once(target, OPTIONS, 2)
            given = agreement.bodies(target, workload_of(OPTIONS, 2), OPTIONS)
            return [call.body for call in server.calls], given

    sent, given = asyncio.run(send())
    write_inputs(given, tmp_path / "inputs.json")
    sessions = json.loads((tmp_path / "inputs.json").read_text())["data"]
    bodies = [body for session in sessions for body in session["payloads"]]
    assert bodies[OPTIONS.run.warmup :] == sent
    assert len({session["session_id"] for session in sessions}) == OPTIONS.run.warmup + 3


def test_the_other_client_gets_the_same_pace_and_counts() -> None:
    """Its own default is a Poisson process. Warm-up requests are beside those that count."""
    arguments = command("http://test", "toy", Path("here"), Sending([b"{}"] * 10, 3, 400.0), Path("out"))
    values = dict(pairwise(arguments))
    assert (values["--request-rate"], values["--arrival-pattern"]) == ("2.5", "constant")
    assert (values["--request-count"], values["--warmup-request-count"]) == ("7", "3")


def report(**changes: Any) -> dict[str, Any]:
    """As AIPerf writes it, with different numbers everywhere."""

    def latency(first: float) -> dict[str, Any]:
        return {"unit": "ms", "avg": first, "p50": first + 1, "p99": first + 2, "count": 9}

    return {
        "time_to_first_token": latency(100),
        "inter_token_latency": latency(20),
        "inter_chunk_latency": latency(10),
        "request_latency": latency(900),
        "request_throughput": {"unit": "requests/sec", "avg": 2.4},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 5.9},
        "benchmark_duration": {"unit": "sec", "avg": 40.0},
        "request_count": {"unit": "requests", "avg": 100.0},
        "total_isl": {"unit": "tokens", "avg": 1280.0},
        "total_osl": {"unit": "tokens", "avg": 240.0},
    } | changes


def test_the_other_clients_names_are_translated() -> None:
    """What AIPerf calls inter-token latency is one number a request: taken for our ITL, its tail would look smooth."""
    found = read_figures(report())
    assert (found.requests, found.failed, found.prompt_tokens, found.output_tokens) == (100, 0, 1280, 240)
    assert found.numbers.keys() == set(NAMES)
    assert [found.numbers[f"{name} mean"] for name in ("TTFT", "TPOT", "ITL", "end to end")] == [0.1, 0.02, 0.01, 0.9]
    assert (found.numbers["ITL p50"], found.numbers["ITL p99"]) == (0.011, 0.012)
    assert (found.numbers["requests/s"], found.numbers["output tokens/s"]) == (2.5, 6.0)
    assert read_figures(report(error_request_count={"unit": "requests", "avg": 2.0})).failed == 2


def test_another_unit_is_no_number() -> None:
    changed = report()["time_to_first_token"] | {"unit": "sec"}
    with pytest.raises(ValueError, match="time_to_first_token is in 'sec', not in 'ms'"):
        read_figures(report(time_to_first_token=changed))
    with pytest.raises(ValueError, match="benchmark_duration is in 'ms', not in 'sec'"):
        read_figures(report(benchmark_duration={"unit": "ms", "avg": 1.0}))


def test_our_numbers_count_from_the_send() -> None:
    """AIPerf knows no time at which a request was due."""
    found = figures_of(run_of([record(1.0, 1.25, 1.75, due=0.0, sent=0.5)])).numbers
    assert (found["TTFT mean"], found["end to end p50"], found["TPOT p99"]) == (0.5, 1.25, 0.375)
    assert (found["ITL p50"], found["ITL mean"]) == (0.375, 0.375)
    assert found.keys() == set(NAMES)


def test_bundled_tokens_are_not_compared() -> None:
    with pytest.raises(BenchError, match="1 events held several tokens"):
        figures_of(run_of([record(1.0, (1.5, 2), due=0.0)]))


def test_clients_that_did_not_do_the_same_are_not_compared() -> None:
    with pytest.raises(BenchError, match="requests failed: 0 of ours, 1 of the other"):
        rows([(FIGURES, replace(FIGURES, failed=1))])
    with pytest.raises(BenchError, match="prompt_tokens 20 and 21"):
        rows([(FIGURES, FIGURES), (FIGURES, replace(FIGURES, prompt_tokens=21))])


def test_a_number_is_the_median_of_its_rounds_and_has_its_limit() -> None:
    """One round in which the machine did something else decides nothing."""
    theirs = [replace(FIGURES, numbers=dict.fromkeys(NAMES, value)) for value in (1.0, 1.05, 3.0)]
    found = {row.name: row for row in rows([(FIGURES, other) for other in theirs])}
    assert found.keys() == set(NAMES)
    assert found["TTFT p99"].theirs == found["requests/s"].theirs == 1.05
    assert {name for name, row in found.items() if row.agrees} == {name for name in NAMES if name.endswith("p99")}
    assert (found["ITL mean"].limit, found["ITL p99"].limit) == (LIMIT, TAIL_LIMIT)
    lines = list(agreement.table(list(found.values())))
    assert sum("DIFFERS" in line for line in lines) == len(NAMES) - 4


@pytest.mark.parametrize(("ours", "agrees"), [(1.0299, True), (0.9701, True), (1.031, False), (0.969, False)])
def test_neither_client_may_be_above(ours: float, agrees: bool) -> None:
    assert Row("TTFT mean", ours, 1.0, LIMIT, ((ours, 1.0),)).agrees is agrees


def test_a_wrong_command_line_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--checkpoint", str(tmp_path)]
    assert agreement.main([*given, "--rounds", "0"]) == 2
    assert agreement.main([*given, "--interval-ms", "0"]) == 2
    assert agreement.main([*given, "--json", str(tmp_path / "no" / "file")]) == 2
    assert agreement.main(["--step-ms", "0"]) == 2
    assert capsys.readouterr().err.count("agreement: error: --") == 4


def test_every_token_of_the_word_tokenizer_has_a_text_of_its_own(tmp_path: Path) -> None:
    """An event without text is a token for us and nothing for AIPerf."""
    write_word_tokenizer(tmp_path, 500)
    tokenizer = load_tokenizer(tmp_path)
    texts = [tokenizer.decode(list(range(end))) for end in range(1, 501)]
    assert all(after.startswith(before) and len(after) > len(before) for before, after in pairwise(texts))
