"""Configurations of engines measured in turns, A B C A B C: what changes slowly on a machine meets all alike."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.measure import measure, peer_named
from benchmarks.peers.peer import Settings
from sluice.bench import BenchError
from sluice.bench.compare import Measure
from sluice.bench.measure import REPEAT_SEED
from sluice.bench.metrics import Summary
from sluice.bench.report import summaries
from sluice.bench.results import Result, read_result, write_result
from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine, set in one way."""

    label: str
    """Part of a file name."""
    peer: str
    settings: Settings


Measurer = Callable[[str, Settings, dict[str, Any], Path], int]
"""As `peers.measure.measure`."""


def alternate(
    configurations: Sequence[Configuration],
    given: Mapping[str, Any],
    repeats: int,
    prefix: Path,
    *,
    measurer: Measurer = measure,
) -> dict[str, Result]:
    """Measure each once, then each again. Every measurement has an engine started for it; a round has one seed.

    Args:
        given: options of `sluice bench`, by name.
        prefix: results are written to PREFIX-LABEL.json after each measurement, so an interruption loses one.

    Returns:
        By label, the runs of all rounds in one result.

    Raises:
        SetupError, ConfigError, BenchError: as `peers.measure.measure`; or a measurement in which all failed.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {repeats}")
    for configuration in configurations:
        peer = peer_named(configuration.peer)
        peer.set_up()
        peer.prepare(configuration.settings)
    found: dict[str, Result] = {}
    for repeat in range(repeats):
        seeded = {**given, "seed": given.get("seed", 0) + REPEAT_SEED * repeat}
        for configuration in configurations:
            label = configuration.label
            print(f"{repeat + 1} of {repeats}: {label}", file=sys.stderr, flush=True)
            path = prefix.with_name(f"{prefix.name}-{label}.json")
            part = path.with_suffix(".part")
            status = measurer(configuration.peer, configuration.settings, seeded, part)
            if status != 0:
                raise BenchError(f"the measurement of {label} failed")
            found[label] = _joined(found.get(label), read_result(part))
            part.unlink()
            write_result(found[label], path)
    return found


def _joined(before: Result | None, result: Result) -> Result:
    if before is None:
        return result
    count = len(before.runs) + 1
    settings = before.settings | {"run": {**before.settings["run"], "repeats": count}}
    return replace(
        before,
        settings=settings,
        runs=(*before.runs, *result.runs),
        summaries=[*before.summaries, *result.summaries],
    )


def medians(result: Result, measures: Sequence[Measure]) -> dict[str, float | None]:
    """Of each number, over the runs; None where a run lacks it."""
    found: list[Summary] = summaries(result)
    values = {measure.name: [measure.of(summary) for summary in found] for measure in measures}
    return {
        name: None if None in own else statistics.median(value for value in own if value is not None)
        for name, own in values.items()
    }
