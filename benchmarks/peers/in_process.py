"""Measures an engine that is a library, inside its own environment.

Workload, client and clock are those of `sluice bench`; only the engine is the peer's.

    measure.py -> <peer's python> -m benchmarks.peers.<peer>
        settings, as one line of JSON  ->  0 once the engine is loaded
        a job                          ->  the exit status of `sluice bench`; the result file is written
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.neighbour import neighbour
from benchmarks.peers.peer import Job, Settings
from sluice.bench import BenchError
from sluice.bench.command import checked_options, verdict
from sluice.bench.driver import Timer
from sluice.bench.engine_target import EngineTarget, RunningEngine, ThreadLink, running
from sluice.bench.measure import measure_all, result_of
from sluice.bench.options import BenchOptions
from sluice.bench.results import write_result
from sluice.config import ConfigError
from sluice.types.request_limits import Limits

MakeLoop = Callable[[Settings, ThreadLink], tuple[RunningEngine, dict[str, Any]]]
"""Loads the peer. Returns its loop and its settings, for the record."""


def main(make_loop: MakeLoop) -> int:
    """Load the engine, and measure each job of standard input until it ends."""
    # Libraries print to standard output too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = json.loads(sys.stdin.readline())
    raw: dict[str, Any] = start["settings"]
    settings = Settings(**{**raw, "checkpoint": Path(raw["checkpoint"]), "more": tuple(raw["more"])})
    timer = Timer()
    link = ThreadLink(timer)
    loop, configured = make_loop(settings, link)
    measured = _Measured(settings, link, timer, start["peer"] | {"configuration": configured})
    with closing(loop), running(loop, link):
        _tell(answers, 0)
        for job in _jobs():
            _tell(answers, measured.status_of(job))
    return 0


def _tell(answers: IO[str], number: int) -> None:
    print(number, file=answers, flush=True)


def _jobs() -> Iterator[Job]:
    for line in sys.stdin:
        raw = json.loads(line)
        yield Job(**{**raw, "out": Path(raw["out"])})


class _Measured:
    """An engine that serves a link."""

    def __init__(self, settings: Settings, link: ThreadLink, timer: Timer, peer: dict[str, Any]) -> None:
        self._settings = settings
        self._link = link
        self._timer = timer
        self._peer = peer
        self._ids = itertools.count(1)
        self._limits = Limits(settings.vocab_size, settings.max_model_len, settings.kv_tokens)

    def status_of(self, job: Job) -> int:
        """Measure a job and write its result. Returns the exit status of `sluice bench`."""
        try:
            return self._measure(job)
        except (ConfigError, BenchError) as error:
            print(f"{self._peer['name']}: error: {error}", file=sys.stderr)
            return 1

    def _measure(self, job: Job) -> int:
        options = checked_options(dict(job.given))
        _check(options)
        settings = self._settings
        ends, ignores = _eos_ids(settings), options.workload.ignore_eos
        target = EngineTarget(self._link, self._limits, ends, self._timer, 0.0, ignores, self._ids)
        with neighbour(job.busy_processor):
            runs = asyncio.run(measure_all(target, options))
        described = {"url": None, "model": settings.checkpoint.resolve().name, "peer": self._peer}
        result = result_of(options, described, runs)
        result = replace(result, versions=result.versions | self._peer["versions"])
        write_result(result, job.out)
        return verdict(result)


def _check(options: BenchOptions) -> None:
    if options.target.temperature != 0:
        raise ConfigError(f"in-process peers are measured with --temperature 0, got {options.target.temperature:g}")
    if options.target.endpoint == "chat" or options.target.prompt_format == "text":
        raise ConfigError("in-process peers take prompts as token ids, on the endpoint completions")


def _eos_ids(settings: Settings) -> frozenset[int]:
    value = settings.config.get("eos_token_id")
    return frozenset([value] if isinstance(value, int) else [])
