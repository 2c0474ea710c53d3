"""Measures a machine: serves a workload that meets steps of all kinds, and fits a model to the trace of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.bench import BenchError
from sluice.bench.options import BenchOptions, options_from
from sluice.config import ConfigError
from sluice.sim.machine import Machine, read_machine

WORKLOAD: Mapping[str, Any] = {
    "num_requests": 32,
    "concurrency": 12,
    "prompt_tokens": "lognormal:160:0.9",
    "output_tokens": "lognormal:32:0.6",
    "ignore_eos": True,
    "seed": 97,
}
"""The number of rows rises to 12, and falls to 1 as the last ones end; prompts of all lengths begin beside them."""

FILES = (".json", ".jsonl")
"""Ends of names that are taken for files and not for models."""


def machine_of(source: str, engine_options: Mapping[str, Any] | None = None) -> Machine:
    """Return the machine that --calibrate names: a server's URL, a file, or a model, which is served for it.

    Args:
        engine_options: of the engine that serves the model.

    Raises:
        ConfigError: it is none of these, or the server writes no trace that can be read here.
        BenchError: the server cannot be measured.
        TraceError: the trace is broken, or too short.
    """
    if source.startswith(("http://", "https://")):
        return _of_server(source)
    if source and (Path(source).is_file() or Path(source).suffix in FILES):
        return read_machine(Path(source))
    return _of_model(source, engine_options or {})


def _options() -> BenchOptions:
    return options_from(WORKLOAD)


def _of_server(url: str) -> Machine:
    from sluice.bench.measure import measure_server

    result = asyncio.run(measure_server(url, _options()))
    trace = _trace_of(result.target)
    if trace is None:
        raise ConfigError(f"--calibrate {url} needs a server of Sluice that was started with --trace FILE")
    if not Path(trace).is_file():
        raise ConfigError(f"--calibrate {url}: its trace {trace} cannot be read here; run this on the server's machine")
    return read_machine(Path(trace))


def _trace_of(described: Mapping[str, Any]) -> str | None:
    """Return the trace that a server says it writes."""
    try:
        found = described["server_info"]["config"]["trace"]["value"]
    except (KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _of_model(model: str, engine_options: Mapping[str, Any]) -> Machine:
    from sluice.bench.measure import measure_engine

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trace.jsonl")
        result = measure_engine({**engine_options, "model": model, "trace": path}, _options())
        if failed := sum(record.failed for record in result.runs[0].requests):
            raise BenchError(f"{failed} requests failed while {model or 'the default model'} was measured")
        return read_machine(Path(path))
