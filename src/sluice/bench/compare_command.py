"""`sluice compare`: two files, or two servers measured in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sluice.bench import facts
from sluice.bench.command import checked_options, checked_path, total_failure
from sluice.bench.compare import CONFIDENCE, ENOUGH_RUNS, Comparison, Ratio, compare
from sluice.bench.errors import BenchError
from sluice.bench.measure import describe_server, measure_once, result_of, server_target, warm_up
from sluice.bench.options import BenchOptions, option_names
from sluice.bench.records import Result, Run
from sluice.bench.report import milliseconds
from sluice.bench.result_file import read_result, write_result
from sluice.bench.server_target import ServerTarget
from sluice.bench.timing import Timer, WallTimer
from sluice.config import ConfigError, flag


def run_compare(given: dict[str, Any]) -> int:
    """Compare, and print the ratios. Returns the exit status.

    Raises:
        ConfigError: a wrong command line.
        BenchError: a file that is no result, a server that cannot be measured.
    """
    files, urls = given.pop("files", []), given.pop("urls", [])
    json_path = checked_path("--json", given.pop("json", None))
    keep = given.pop("keep", None)
    if bool(files) == bool(urls) or len(files or urls) != 2:
        raise ConfigError("give two files, or --url twice")
    if files:
        if given or keep is not None:
            raise ConfigError(f"two files are compared as they are; {flag(next(iter(given), 'keep'))} is for two --url")
        base, other = (read_result(Path(path)) for path in files)
        comparison = compare(base, other)
    else:
        kept = [checked_path("--keep", f"{keep}-{side}.json") for side in "ab"] if keep is not None else []
        options = checked_options({name: given[name] for name in option_names() & given.keys()})
        results = asyncio.run(measure_in_turns(urls, options))
        for path, result in zip(kept, results, strict=False):
            assert path is not None
            write_result(result, path)
        for result in results:
            _check_some_worked(result)
        comparison = compare(*results, paired=True)
    if json_path is not None:
        _write(comparison, json_path)
    print(table(comparison))
    return 0


async def measure_in_turns(urls: list[str], options: BenchOptions, timer: Timer | None = None) -> tuple[Result, Result]:
    """A B A B: what changes slowly on the machine or the way to it meets both alike.

    Raises:
        ConfigError, BenchError: as `measure.measure_server`.
    """
    timer = timer or WallTimer()
    targets: list[ServerTarget] = []
    for url in urls:
        target = await server_target(url, options, timer)
        await warm_up(target, options)
        targets.append(target)
    runs: list[list[Run]] = [[] for _ in targets]
    for repeat in range(options.run.repeats):
        for side, (own, target) in enumerate(zip(runs, targets, strict=True)):
            # A server measured against itself would find the first side's prompts in its cache.
            shift = side * options.run.repeats if urls[0] == urls[1] else 0
            own.append(await measure_once(target, options, repeat + shift, timer))
    first, second = [
        result_of(options, await describe_server(target), own, facts.versions())
        for own, target in zip(runs, targets, strict=True)
    ]
    return first, second


def _check_some_worked(result: Result) -> None:
    for failure in map(total_failure, result.runs):
        if failure is not None:
            raise BenchError(f"all requests to {result.target['url']} failed: {failure.kind}: {failure.message}")


def table(comparison: Comparison) -> str:
    """For a terminal."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    ours, theirs = comparison.runs
    yield f"base   {comparison.base} ({ours} run{'s' * (ours > 1)})"
    yield f"other  {comparison.other} ({theirs} run{'s' * (theirs > 1)})"
    yield ""
    yield f"{'':<28}{'base':>12}{'other':>12}{'other/base':>12}   {CONFIDENCE}% interval"
    for ratio in comparison.ratios:
        yield _line(ratio)
    yield ""
    yield f"Intervals are resampled over {comparison.resampled}."
    if comparison.resampled == "requests":
        yield "note: one run of each says nothing about how runs differ; use --repeats"
    elif min(comparison.runs) < ENOUGH_RUNS:
        yield f"note: with fewer than {ENOUGH_RUNS} runs of each the intervals are too narrow to call a side better"
    for difference in comparison.differences:
        yield f"note: not the same in both: {difference}"


def _line(ratio: Ratio) -> str:
    shown = [f"{value:.2f}" if ratio.unit == "" else milliseconds(value) for value in (ratio.base, ratio.other)]
    sure = "-" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    verdict = ("  better" if ratio.is_better else "  worse") if ratio.is_clear else ""
    label = f"{ratio.name}, {ratio.unit}" if ratio.unit else ratio.name
    return f"{label:<28}{shown[0]:>12}{shown[1]:>12}{ratio.ratio:>12.3f}   {sure}{verdict}"


def _write(comparison: Comparison, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.encode(comparison) + b"\n")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror or error}") from error
