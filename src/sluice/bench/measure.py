"""Runs a measurement from its options to its result: warm up, send the workload, keep the records."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sluice.bench import BenchError
from sluice.bench.driver import BenchTarget, Timer, drive, record_of, watch_lag
from sluice.bench.engine_target import EngineTarget, RunningEngine, ThreadLink, running
from sluice.bench.http import find_server
from sluice.bench.openai import CountText, ServerTarget, about_server, served_model
from sluice.bench.options import BenchOptions
from sluice.bench.records import Run
from sluice.bench.report import summaries
from sluice.bench.results import FORMAT, IN_PROCESS_PACKAGES, BenchResult, machine, versions
from sluice.bench.workload import Workload, build_workload, warmup_turns
from sluice.process.engine_process import freeze_gc

REPEAT_SEED = 1_000_003
"""Far enough apart that the prompts of no repeat are those of another seed's first."""
REDRAW_SECONDS = 0.5
"""Interval of the progress bar: drawing it takes the machine's time from what is measured."""


async def measure_server(url: str, options: BenchOptions) -> BenchResult:
    """Measure a server with OpenAI's API.

    Raises:
        ConfigError: an option cannot be honoured.
        BenchError: the server cannot be reached, or does not serve what it is asked for.
    """
    target = await server_target(url, options, Timer())
    runs = await measure_all(target, options)
    return result_of(options, await _describe(target), runs)


async def measure_in_turns(urls: Sequence[str], options: BenchOptions) -> list[BenchResult]:
    """Measure two servers in turns, A B A B: what changes slowly on the machine or the network meets both alike.

    Raises:
        ConfigError, BenchError: as `measure_server`.
    """
    targets = []
    _announce(options)
    for url in urls:
        target = await server_target(url, options, Timer())
        await warm_up(target, options)
        targets.append(target)
    runs: list[list[Run]] = [[] for _ in targets]
    for repeat in range(options.run.repeats):
        for side, (own, target) in enumerate(zip(runs, targets, strict=True)):
            # A server measured against itself would find the first side's prompts in its cache.
            shift = side * options.run.repeats if urls[0] == urls[1] else 0
            own.append(await measure_once(target, options, repeat + shift))
    return [result_of(options, await _describe(target), own) for own, target in zip(runs, targets, strict=True)]


async def server_target(url: str, options: BenchOptions, timer: Timer) -> ServerTarget:
    """Find the server behind a URL, and its model.

    Raises:
        ConfigError, BenchError: as `measure_server`.
    """
    count_text = None if options.target.tokenizer is None else _counter(Path(options.target.tokenizer))
    server = await find_server(url, api_key=options.target.api_key)
    return ServerTarget(
        server=server,
        model=await served_model(server, options.target.model_name, timer),
        options=options.target,
        timer=timer,
        ignore_eos=options.workload.ignore_eos,
        as_text=options.target.prompt_format == "text" or options.workload.turns > 1,
        count_text=count_text,
    )


async def _describe(target: ServerTarget) -> dict[str, Any]:
    """Return what was measured, with what the server reports about itself."""
    described = {"url": target.server.url, "model": target.model}
    return described | await about_server(target.server, target.timer)


def _counter(folder: Path) -> CountText:
    from sluice.text.tokenizer import TokenizerError
    from sluice.text.tokenizer_files import load_tokenizer

    try:
        tokenizer = load_tokenizer(folder, chat=False)
    except TokenizerError as error:
        raise BenchError(f"--tokenizer: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def measure_engine(engine_options: Mapping[str, Any], options: BenchOptions) -> BenchResult:
    """Measure the engine in this process.

    Args:
        engine_options: as `LLM(...)` takes them, `model` among them.

    Raises:
        ConfigError: an option cannot be honoured.
        CheckpointError, TokenizerError: the model cannot be loaded.
        BenchError: the engine refuses the workload.
    """
    from sluice.assembly.engine import build_engine
    from sluice.config import EngineConfig
    from sluice.text.tokenizer_files import has_tokenizer, load_tokenizer

    timer = Timer()
    link = ThreadLink(timer)
    engine, info = build_engine(EngineConfig.from_options(engine_options), link, progress=True)
    folder = info.tokenizer_folder
    own_eos = load_tokenizer(folder, chat=False).eos_token_ids if has_tokenizer(folder) else frozenset()
    target = EngineTarget(
        link,
        info.limits,
        info.eos_token_ids | own_eos,
        timer,
        options.target.temperature,
        options.workload.ignore_eos,
    )
    found = measure_in_process(engine, target, options)
    described = {"url": None, "model": info.model, "engine": asdict(info.config)}
    return result_of(options, described, found, packages=IN_PROCESS_PACKAGES)


def measure_in_process(engine: RunningEngine, target: EngineTarget, options: BenchOptions) -> list[Run]:
    """Measure an engine that serves `target.link`. The engine is closed afterwards.

    Raises:
        BenchError: the engine refuses the workload.
    """
    with closing(engine), running(engine, target.link):
        return asyncio.run(measure_all(target, options))


async def measure_all(target: BenchTarget, options: BenchOptions) -> list[Run]:
    """Warm the target up and measure it `--repeats` times.

    Raises:
        BenchError: the warm-up fails.
    """
    _announce(options)
    await warm_up(target, options)
    return [await measure_once(target, options, repeat) for repeat in range(options.run.repeats)]


def _announce(options: BenchOptions) -> None:
    """Tell a person at the terminal, as the progress bar does."""
    if sys.stderr.isatty():
        print(announced(workload_of(options, 0), options), file=sys.stderr)


def announced(workload: Workload, options: BenchOptions) -> str:
    """Return what will be sent, and what is known of how long that takes."""
    last = max((session.at for session in workload.sessions if session.at is not None), default=None)
    parts = [f"{workload.num_requests} requests"]
    if last is None:
        parts.append(f"{workload.concurrency} at a time")
    else:
        parts.append(f"the last one {'begins' if options.workload.turns > 1 else 'is sent'} after {last:.3g} s")
    if workload.background:
        parts.append(f"{len(workload.background)} streams beside them until all are answered")
    if options.run.repeats > 1:
        parts.append(f"{options.run.repeats} times")
    warm_up = f"; before them {options.run.warmup} to warm up" if options.run.warmup else ""
    return f"sluice bench: {', '.join(parts)}{warm_up}"


async def warm_up(target: BenchTarget, options: BenchOptions) -> None:
    """Send the requests before the first measurement, one after the other.

    Raises:
        BenchError: one fails, or is not streamed: then the measurement would mean nothing.
    """
    vocab_size = options.target.vocab_size
    workload = build_workload(options.workload, vocab_size=vocab_size)
    for turn in warmup_turns(workload, options.workload, options.run.warmup, vocab_size=vocab_size):
        answer = (await target.send(target.prepare(turn, ()))).answer()
        if answer.failure is not None:
            kind, message = answer.failure
            raise BenchError(f"the warm-up failed: {kind}: {message}")
        if len(answer.arrivals) == 1 and answer.num_tokens > 1:
            raise BenchError(
                f"the server does not stream: {answer.num_tokens} tokens came in one event, the whole answer at once"
            )


def workload_of(options: BenchOptions, repeat: int) -> Workload:
    """Return the workload of a repeat: each has prompts, lengths and arrivals of its own, the same for every target."""
    seeded = replace(options.workload, seed=options.workload.seed + REPEAT_SEED * repeat)
    return build_workload(seeded, vocab_size=options.target.vocab_size)


async def measure_once(target: BenchTarget, options: BenchOptions, repeat: int) -> Run:
    """Measure one run, of `workload_of` this repeat."""
    workload = workload_of(options, repeat)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    label = "measuring" if options.run.repeats == 1 else f"measuring {repeat + 1} of {options.run.repeats}"
    bar = tqdm(
        total=workload.num_requests, desc=label, unit="request", mininterval=REDRAW_SECONDS, leave=False, disable=None
    )
    freeze_gc()  # a collection that walks over every prompt would pause the client
    try:
        with bar:
            async with watch_lag(target.timer) as late:
                start, attempts = await drive(target, workload, bar.update)
    finally:
        gc.unfreeze()
    return Run(
        started, tuple(record_of(attempt, start) for attempt in attempts), tuple(round(each, 6) for each in late)
    )


def result_of(
    options: BenchOptions, target: dict[str, Any], runs: Sequence[Run], packages: Iterable[str] = ()
) -> BenchResult:
    """Return the result with its numbers. The API key is not in it.

    Args:
        packages: whose versions matter for the numbers.
    """
    settings = {
        "workload": asdict(options.workload),
        "target": {name: value for name, value in asdict(options.target).items() if name != "api_key"},
        "run": asdict(options.run),
    }
    result = BenchResult(FORMAT, settings, target, versions(packages), machine(), tuple(runs))
    return replace(result, summaries=[asdict(summary) for summary in summaries(result)])
