"""One measurement from its options to its result: warm up, send the workload, keep the records."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sluice.bench import facts
from sluice.bench.answers import Answer, Target
from sluice.bench.driver import drive, record_of
from sluice.bench.engine_target import EngineTarget, Loop, ThreadLink, running
from sluice.bench.errors import BenchError
from sluice.bench.openai_stream import CountText
from sluice.bench.options import BenchOptions
from sluice.bench.progress import watching
from sluice.bench.records import Result, Run
from sluice.bench.report import summaries
from sluice.bench.result_file import FORMAT
from sluice.bench.server_target import ServerTarget, about_server, served_model
from sluice.bench.timing import Lag, Timer, WallTimer
from sluice.bench.url import find_server
from sluice.bench.workload import Workload, build_workload, warmup_turns
from sluice.process.engine_process import freeze_gc

REPEAT_SEED = 1_000_003
"""Apart enough that the prompts of no repeat are those of another seed's first."""


async def measure_server(url: str, options: BenchOptions, timer: Timer | None = None) -> Result:
    """Measure a server with OpenAI's API.

    Raises:
        ConfigError: an option that cannot be honoured.
        BenchError: the server cannot be reached, or does not serve what is asked of it.
    """
    timer = timer or WallTimer()
    target = await server_target(url, options, timer)
    await warm_up(target, options)
    runs = [await measure_once(target, options, repeat, timer) for repeat in range(options.run.repeats)]
    return result_of(options, await describe_server(target), runs, facts.versions())


async def server_target(url: str, options: BenchOptions, timer: Timer) -> ServerTarget:
    """The server behind a URL, its model found.

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


async def describe_server(target: ServerTarget) -> dict[str, Any]:
    """Who was measured, with what the server says about itself."""
    described = {"url": target.server.url, "model": target.model}
    return described | await about_server(target.server, target.timer)


def _counter(folder: Path) -> CountText:
    from sluice.text.tokenizer import Tokenizer, TokenizerError

    try:
        tokenizer = Tokenizer.from_folder(folder)
    except TokenizerError as error:
        raise BenchError(f"--tokenizer: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def measure_engine(engine_options: Mapping[str, Any], options: BenchOptions) -> Result:
    """Measure the engine in this process.

    Args:
        engine_options: as `LLM(...)` takes them, `model` among them.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError, TokenizerError: a model that cannot be loaded.
        BenchError: the engine refuses the workload.
    """
    from sluice.assembly.build import build_engine
    from sluice.config import EngineConfig
    from sluice.text.tokenizer import Tokenizer

    timer = WallTimer()
    link = ThreadLink(timer)
    engine, info = build_engine(EngineConfig.from_options(engine_options), link, progress=True)
    has_tokenizer = (info.folder / "tokenizer.json").is_file()
    own_eos = Tokenizer.from_folder(info.folder).eos_token_ids if has_tokenizer else frozenset()
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
    return result_of(options, described, found, facts.versions(facts.IN_PROCESS_PACKAGES))


def measure_in_process(engine: Loop, target: EngineTarget, options: BenchOptions) -> list[Run]:
    """Every run of an engine that serves `target.link`. The engine is closed afterwards.

    Raises:
        BenchError: the engine refuses the workload.
    """

    with closing(engine), running(engine, target.link):
        return asyncio.run(measure_all(target, options))


async def measure_all(target: EngineTarget, options: BenchOptions) -> list[Run]:
    """Every run of an engine whose loop runs.

    Raises:
        BenchError: the engine refuses the workload.
    """
    await warm_up(target, options)
    return [await measure_once(target, options, repeat, target.timer) for repeat in range(options.run.repeats)]


async def warm_up(target: Target, options: BenchOptions) -> None:
    """The requests before the first measurement, one after the other.

    Raises:
        BenchError: one fails, or is not streamed: then the measurement would say nothing.
    """
    vocab_size = options.target.vocab_size
    workload = build_workload(options.workload, vocab_size=vocab_size)
    for turn in warmup_turns(workload, options.workload, options.run.warmup, vocab_size=vocab_size):
        exchange = await target.send(target.prepare(turn, ()))
        _check_warm_up(exchange.answer())


def _check_warm_up(answer: Answer) -> None:
    if answer.failure is not None:
        kind, message = answer.failure
        raise BenchError(f"the warm-up failed: {kind}: {message}")
    if len(answer.arrivals) == 1 and answer.num_tokens > 1:
        raise BenchError(
            f"the server does not stream: {answer.num_tokens} tokens came in one event, the whole answer at once"
        )


def workload_of(options: BenchOptions, repeat: int) -> Workload:
    """Each repeat has prompts, lengths and arrivals of its own, the same for every target."""
    seeded = replace(options.workload, seed=options.workload.seed + REPEAT_SEED * repeat)
    return build_workload(seeded, vocab_size=options.target.vocab_size)


async def measure_once(target: Target, options: BenchOptions, repeat: int, timer: Timer) -> Run:
    """One run, of `workload_of` this repeat."""
    workload = workload_of(options, repeat)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    label = "measuring" if options.run.repeats == 1 else f"measuring {repeat + 1} of {options.run.repeats}"
    lag = Lag(timer)
    with watching(workload.num_requests, label) as watcher, _settled_memory():
        async with lag:
            start, attempts = await drive(target, workload, timer, watcher)
    records = tuple(record_of(attempt, start) for attempt in attempts)
    return Run(started, records, tuple(round(late, 6) for late in lag.seconds))


@contextmanager
def _settled_memory() -> Iterator[None]:
    """The garbage collector leaves alone what is there already: walking over every prompt would pause the client."""
    freeze_gc()
    try:
        yield
    finally:
        gc.unfreeze()


def result_of(options: BenchOptions, target: dict[str, Any], runs: list[Run], versions: dict[str, str]) -> Result:
    """The result, its numbers computed. The API key is not in it."""
    settings = {
        "workload": asdict(options.workload),
        "target": {name: value for name, value in asdict(options.target).items() if name != "api_key"},
        "run": asdict(options.run),
    }
    result = Result(FORMAT, settings, target, versions, facts.machine(), tuple(runs))
    return replace(result, summaries=[asdict(summary) for summary in summaries(result)])
