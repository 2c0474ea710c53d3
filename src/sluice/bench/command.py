"""`sluice bench` and `sluice compare`: from the command line to table and files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluice.bench import BenchError
from sluice.bench import compare as comparisons
from sluice.bench.measure import measure_engine, measure_in_turns, measure_server
from sluice.bench.metrics import parse_goodput
from sluice.bench.options import OPTION_NAMES, BenchOptions, options_from
from sluice.bench.records import Failure, Run
from sluice.bench.report import streams_nothing, table
from sluice.bench.results import BenchResult, read_result, write_file, write_result
from sluice.bench.workload import build_workload
from sluice.config import ConfigError, EngineConfig, flag
from sluice.tracing.run import StepRun


def run_bench(given: dict[str, Any]) -> int:
    """Measure, or read what was measured, and show it. Returns the exit status: 0, or 1 if all requests failed.

    Args:
        given: the flags of the command line, by name.

    Raises:
        ConfigError: the command line is wrong.
        BenchError: the measurement cannot be made.
        OSError, ValueError, RuntimeError: the model cannot be loaded.
    """
    json_path, html_path = (checked_path(flag(name), given.pop(name, None)) for name in ("json", "html"))
    source = given.pop("source", None)
    trace_path = _trace_to_draw(
        given, is_measured_here=source is None and "url" not in given, draws=html_path is not None
    )
    if source is not None:
        if given or json_path:
            raise ConfigError(f"--from measures nothing: {flag(next(iter(given), 'json'))} is not accepted with it")
        result = read_result(Path(source))
    else:
        result = _measure(given)
    if json_path is not None:
        write_result(result, json_path)
    if html_path is not None:
        from sluice.bench.html import page

        steps = () if trace_path is None else _steps_of(trace_path)
        write_file(html_path, page(result, steps).encode())
    print(table(result))
    return 0 if source is not None else verdict(result)


def run_compare(given: dict[str, Any]) -> int:
    """Compare two results, or measure two servers in turns, and print the ratios. Returns the exit status.

    Raises:
        ConfigError: the command line is wrong.
        BenchError: a file holds no result, or a server cannot be measured.
    """
    files, urls = given.pop("files", []), given.pop("urls", [])
    json_path = checked_path("--json", given.pop("json", None))
    keep = given.pop("keep", None)
    if bool(files) == bool(urls) or len(files or urls) != 2:
        raise ConfigError("give two files, or --url twice")
    if files:
        if given or keep is not None:
            raise ConfigError(f"{flag(next(iter(given), 'keep'))} needs two --url; two files are compared as they are")
        results = [read_result(Path(path)) for path in files]
    else:
        kept = [checked_path("--keep", f"{keep}-{side}.json") for side in "ab"] if keep is not None else []
        results = asyncio.run(measure_in_turns(urls, checked_options(given)))
        for path, result in zip(kept, results, strict=False):
            assert path is not None
            write_result(result, path)
        for result in results:
            for failure in map(total_failure, result.runs):
                if failure is not None:
                    raise BenchError(
                        f"all requests to {result.target['url']} failed: {failure.kind}: {failure.message}"
                    )
    comparison = comparisons.compare(*results, paired=bool(urls))
    if json_path is not None:
        write_file(json_path, msgspec.json.encode(comparison) + b"\n")
    print(comparisons.table(comparison))
    return 0


def _trace_to_draw(given: dict[str, Any], *, is_measured_here: bool, draws: bool) -> Path | None:
    """Return the trace whose steps the report is to show. An engine in this process writes it; a server has written it.

    Raises:
        ConfigError: a server's trace would have no effect, or does not exist.
    """
    if is_measured_here:
        return Path(given["trace"]) if draws and given.get("trace") is not None else None
    path = given.pop("trace", None)
    if path is None:
        return None
    if not draws:
        raise ConfigError(f"--trace {path} is drawn in the report: name one with --html, or leave it out")
    if not Path(path).is_file():
        raise ConfigError(f"--trace must name the file that the server writes, got {path!r}")
    return Path(path)


def _steps_of(path: Path) -> Sequence[StepRun]:
    from sluice.bench.pacing import read_steps

    return read_steps(path)


def _measure(given: dict[str, Any]) -> BenchResult:
    url = given.pop("url", None)
    options = checked_options({name: given.pop(name) for name in OPTION_NAMES & given.keys()})
    if (url is None) == ("model" not in given):
        raise ConfigError("give either --url (a server) or --model (to measure in this process)")
    if url is None:
        for name in ("model_name", "api_key", "tokenizer"):
            if vars(options.target)[name] is not None:
                raise ConfigError(f"{flag(name)} needs --url, got --model")
        if options.target.endpoint == "chat" or options.target.prompt_format == "text":
            raise ConfigError("--endpoint chat and --prompt-format text need --url; with --model prompts are token ids")
        EngineConfig.from_options(given)
        return measure_engine(given, options)
    if given:
        raise ConfigError(f"{flag(next(iter(given)))} is an option of the engine; with --url set it on the server")
    return asyncio.run(measure_server(url, options))


def checked_options(given: dict[str, Any]) -> BenchOptions:
    """Make the options, and check every text in them before minutes of measuring.

    Raises:
        ConfigError: a value is not accepted, or options contradict each other.
    """
    options = options_from(given)
    if options.run.goodput is not None:
        parse_goodput(options.run.goodput)
    build_workload(options.workload, vocab_size=options.target.vocab_size)
    return options


def checked_path(name: str, text: str | None) -> Path | None:
    """Return the path to write to.

    Raises:
        ConfigError: its folder does not exist, or it is a folder itself.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{name} must name a file in a folder that exists, got {text!r}")
    return path


def total_failure(run: Run) -> Failure | None:
    """Return the first failure of a run in which all requests failed."""
    failures = [record.failure for record in run.requests if record.failure is not None]
    return failures[0] if len(failures) == len(run.requests) else None


def verdict(result: BenchResult) -> int:
    """Return the exit status of a measurement, and print to standard error why it is not 0."""
    for run in result.runs:
        failure = total_failure(run)
        if failure is not None:
            print(f"sluice bench: error: all requests failed: {failure.kind}: {failure.message}", file=sys.stderr)
            return 1
        if streams_nothing(run.requests):
            print("sluice bench: error: the server does not stream: each answer came in one event", file=sys.stderr)
            return 1
    return 0
