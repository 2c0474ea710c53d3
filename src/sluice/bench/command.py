"""`sluice bench`: from the command line to table and files."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from sluice.bench.answers import Failure
from sluice.bench.errors import BenchError
from sluice.bench.measure import measure_engine, measure_server
from sluice.bench.metrics import parse_goodput
from sluice.bench.options import BenchOptions, option_names, options_from
from sluice.bench.records import Result, Run
from sluice.bench.remarks import streams_nothing
from sluice.bench.report import table
from sluice.bench.result_file import read_result, write_result
from sluice.bench.workload import build_workload
from sluice.config import ConfigError, EngineConfig, flag

FILES = ("json", "html")


def run_bench(given: dict[str, Any]) -> int:
    """Measure, or read what was measured, and show it. Returns the exit status: 0, or 1 if nothing worked.

    Args:
        given: the flags that were given, by name.

    Raises:
        ConfigError: a wrong command line.
        BenchError: a measurement that cannot be made.
        OSError, ValueError, RuntimeError: a model that cannot be loaded.
    """
    json_path, html_path = (checked_path(flag(name), given.pop(name, None)) for name in FILES)
    source = given.pop("source", None)
    if source is not None:
        if given or json_path:
            raise ConfigError(f"--from measures nothing: {flag(next(iter(given), 'json'))} cannot be honoured")
        result = read_result(Path(source))
    else:
        result = measure(given)
    if json_path is not None:
        write_result(result, json_path)
    if html_path is not None:
        from sluice.bench.html import page

        write_text(html_path, page(result))
    print(table(result))
    return 0 if source is not None else verdict(result)


def measure(given: dict[str, Any]) -> Result:
    """
    Raises:
        As `run_bench`.
    """
    url = given.pop("url", None)
    options = checked_options({name: given.pop(name) for name in option_names() & given.keys()})
    if (url is None) == ("model" not in given):
        raise ConfigError("give one of --url, a server, and --model, to measure in this process")
    if url is None:
        for name in ("model_name", "api_key", "tokenizer"):
            if vars(options.target)[name] is not None:
                raise ConfigError(f"{flag(name)} is for a server; with --model there is none")
        if options.target.endpoint == "chat" or options.target.prompt_format == "text":
            raise ConfigError("--endpoint chat and --prompt-format text are for a server; with --model prompts are ids")
        EngineConfig.from_options(given)
        return measure_engine(given, options)
    if given:
        raise ConfigError(f"{flag(next(iter(given)))} is an option of the engine; with --url the server has its own")
    return asyncio.run(measure_server(url, options))


def checked_options(given: dict[str, Any]) -> BenchOptions:
    """The options, every text in them understood: nothing is found out after minutes of measuring.

    Raises:
        ConfigError
    """
    options = options_from(given)
    if options.run.goodput is not None:
        parse_goodput(options.run.goodput)
    build_workload(options.workload, vocab_size=options.target.vocab_size)
    return options


def checked_path(name: str, text: str | None) -> Path | None:
    """Where to write, if that is possible.

    Raises:
        ConfigError: there is no such folder, or it is a folder itself.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{name} must name a file in a folder that exists, got {text!r}")
    return path


def write_text(path: Path, text: str) -> None:
    """
    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror or error}") from error


def total_failure(run: Run) -> Failure | None:
    """The first failure of a run in which nothing else happened."""
    failures = [record.failure for record in run.requests if record.failure is not None]
    return failures[0] if len(failures) == len(run.requests) else None


def verdict(result: Result) -> int:
    """The exit status of a measurement; why it is not 0 goes to standard error."""
    for run in result.runs:
        failure = total_failure(run)
        if failure is not None:
            print(f"sluice bench: error: all requests failed: {failure.kind}: {failure.message}", file=sys.stderr)
            return 1
        if streams_nothing(run.requests):
            print("sluice bench: error: the server does not stream: each answer came in one event", file=sys.stderr)
            return 1
    return 0
