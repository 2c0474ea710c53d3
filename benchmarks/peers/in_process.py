"""Measures an engine that is a library, inside its own environment.

Workload, client and clock are those of `sluice bench`; only the engine is the peer's.

    run.py -> <peer's python> -m benchmarks.peers.<peer> REQUEST.json -> result file
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.neighbour import neighbour
from benchmarks.peers.peer import Job, Settings
from sluice.bench import BenchError
from sluice.bench.command import checked_options, verdict
from sluice.bench.driver import WallTimer
from sluice.bench.engine_target import EngineTarget, Loop, ThreadLink, running
from sluice.bench.measure import measure_all, result_of
from sluice.bench.options import BenchOptions
from sluice.bench.results import write_result
from sluice.config import ConfigError
from sluice.limits import Limits

MakeLoop = Callable[[Settings, ThreadLink], tuple[Loop, dict[str, Any]]]
"""Loads the peer. Returns its loop and its settings, for the record."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request of `run.py`."""

    settings: Settings
    peer: dict[str, Any]
    """The description of the peer in the results."""
    jobs: tuple[Job, ...]

    @classmethod
    def read(cls, path: Path) -> Request:
        content = json.loads(path.read_text(encoding="utf-8"))
        raw: Mapping[str, Any] = content["settings"]
        settings = Settings(**{**raw, "checkpoint": Path(raw["checkpoint"]), "more": tuple(raw["more"])})
        jobs = tuple(Job(**{**job, "out": Path(job["out"])}) for job in content["jobs"])
        return cls(settings, content["peer"], jobs)


def main(make_loop: MakeLoop) -> int:
    """Measure what the file on the command line requests. Returns the exit status of `sluice bench`."""
    request = Request.read(Path(sys.argv[1]))
    try:
        return _measure(request, make_loop)
    except (ConfigError, BenchError) as error:
        print(f"{request.peer['name']}: error: {error}", file=sys.stderr)
        return 1


def _measure(request: Request, make_loop: MakeLoop) -> int:
    all_options = [checked_options(dict(job.given)) for job in request.jobs]
    for options in all_options:
        _check(options)
    timer = WallTimer()
    link = ThreadLink(timer)
    settings = request.settings
    loop, configured = make_loop(settings, link)
    limits = Limits(settings.vocab_size, settings.max_model_len, settings.kv_tokens)
    peer = request.peer | {"configuration": configured}
    described = {"url": None, "model": settings.checkpoint.resolve().name, "peer": peer}
    ids = itertools.count(1)
    with closing(loop), running(loop, link):
        for job, options in zip(request.jobs, all_options, strict=True):
            target = EngineTarget(link, limits, _eos_ids(settings), timer, 0.0, options.workload.ignore_eos, ids)
            with neighbour(job.busy_processor):
                runs = asyncio.run(measure_all(target, options))
            result = result_of(options, described, runs)
            result = replace(result, versions=result.versions | request.peer["versions"])
            write_result(result, job.out)
            if (status := verdict(result)) != 0:
                return status
    return 0


def _check(options: BenchOptions) -> None:
    if options.target.temperature != 0:
        raise ConfigError(f"in-process peers are measured with --temperature 0, got {options.target.temperature:g}")
    if options.target.endpoint == "chat" or options.target.prompt_format == "text":
        raise ConfigError("in-process peers take prompts as token ids, on the endpoint completions")


def _eos_ids(settings: Settings) -> frozenset[int]:
    value = settings.config.get("eos_token_id")
    return frozenset([value] if isinstance(value, int) else [])
