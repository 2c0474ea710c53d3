"""Sends requests by AIPerf, an independent client of OpenAI's API, and reads its report.

AIPerf has an environment of its own (`peers/pins/aiperf.txt`), gets the same bodies that `sluice bench` sends, in the
same order, and computes its figures itself; only their names are translated (`LATENCIES`). Its inter-token latency is
one number for each request, (request latency - time to first token) / (tokens - 1): TPOT here. Its inter-chunk latency
is our ITL if every event holds one token and every token has a text: AIPerf does not count events without text.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import Environment
from sluice.bench import BenchError

ENVIRONMENT = Environment("aiperf")
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Without HF_HUB_OFFLINE, with which AIPerf accepts no folder as a tokenizer. It reads a folder without the network."""
REPORT = "profile_export_aiperf.json"
LATENCIES = {
    "TTFT": "time_to_first_token",
    "TPOT": "inter_token_latency",
    "ITL": "inter_chunk_latency",
    "end to end": "request_latency",
}
STATISTICS = {"mean": "avg", "p50": "p50", "p99": "p99"}
RATES = {"requests/s": "request_count", "output tokens/s": "total_osl"}
"""Rates over the time from the first request to the last token (`DURATION`). With a request rate AIPerf's own are over
a window that is an interval longer: until the next request would have been sent."""
DURATION = "benchmark_duration"


@dataclass(frozen=True, slots=True)
class Figures:
    """A client's figures of one run."""

    requests: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    numbers: Mapping[str, float]
    """Latencies in seconds, as "TTFT mean", and rates, as "requests/s"."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Requests, and when they are sent."""

    bodies: Sequence[bytes]
    """The requests, as JSON objects."""
    warmup: int
    """Number of requests at the beginning that are sent one after the other and do not count."""
    interval_ms: float
    """Time between two requests."""


def command(url: str, model: str, tokenizer: Path, sending: Sending, folder: Path) -> list[str]:
    """Return AIPerf's command line: a connection for each request, and the server's counts, as in `sluice bench`."""
    return [
        *(str(ENVIRONMENT.folder / "bin" / "aiperf"), "profile", "--model", model, "--url", url),
        *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(tokenizer.resolve())),
        *("--input-file", str(_inputs(folder)), "--custom-dataset-type", "inputs-json"),
        *("--dataset-sampling-strategy", "sequential", "--request-count", str(len(sending.bodies) - sending.warmup)),
        *("--warmup-request-count", str(sending.warmup), "--warmup-concurrency", "1"),
        *("--use-server-token-count", "--connection-reuse-strategy", "never"),
        *("--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--request-rate", repr(1000 / sending.interval_ms), "--arrival-pattern", "constant"),
        *("--ui", "none", "--artifact-dir", str(folder)),
    ]


def _inputs(folder: Path) -> Path:
    return folder.with_suffix(".inputs.json")


def measure(url: str, model: str, tokenizer: Path, sending: Sending, folder: Path) -> Figures:
    """Send all requests. AIPerf's files stay in `folder`, its output in the file FOLDER.log.

    Raises:
        BenchError: AIPerf fails, or its report cannot be read.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_inputs(sending.bodies, _inputs(folder))
    log = folder.with_suffix(".log")
    (folder / REPORT).unlink(missing_ok=True)
    with log.open("wb") as output:
        done = subprocess.run(
            command(url, model, tokenizer, sending, folder),
            check=False,
            env=os.environ | VARIABLES,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise BenchError(f"aiperf ended with {done.returncode}; see {log}")
    try:
        return read_figures(json.loads((folder / REPORT).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"aiperf left no numbers ({type(error).__name__}: {error}); see {log}") from error


def write_inputs(bodies: Sequence[bytes], path: Path) -> None:
    """Write the file of requests that AIPerf sends unchanged: sessions of one request each."""
    sessions = [{"session_id": f"{index:06d}", "payloads": [json.loads(body)]} for index, body in enumerate(bodies)]
    path.write_text(json.dumps({"data": sessions}), encoding="utf-8")


def read_figures(report: Mapping[str, Any]) -> Figures:
    """Read the JSON that AIPerf writes.

    Raises:
        KeyError, TypeError, ValueError: it has another form.
    """
    _check_unit(report, DURATION, "sec")
    numbers = {name: float(report[tag]["avg"] / report[DURATION]["avg"]) for name, tag in RATES.items()}
    for name, tag in LATENCIES.items():
        _check_unit(report, tag, "ms")
        for statistic, theirs in STATISTICS.items():
            numbers[f"{name} {statistic}"] = float(report[tag][theirs]) / 1000
    failed = report.get("error_request_count")
    return Figures(
        requests=round(report["request_count"]["avg"]),
        failed=0 if failed is None else round(failed["avg"]),
        prompt_tokens=round(report["total_isl"]["avg"]),
        output_tokens=round(report["total_osl"]["avg"]),
        numbers=numbers,
    )


def _check_unit(report: Mapping[str, Any], tag: str, unit: str) -> None:
    if report[tag]["unit"] != unit:
        raise ValueError(f"{tag} is in {report[tag]['unit']!r}, not in {unit!r}")
