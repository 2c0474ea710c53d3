"""Measures configurations of engines in turns, A B C A B C, so that slow changes of the machine meet all alike."""

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
from sluice.bench.results import BenchResult, read_result, write_result
from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine with one set of options."""

    label: str
    """Name of the configuration, and part of its file's name."""
    peer: str
    settings: Settings


Measurer = Callable[[str, Settings, dict[str, Any], Path], int]
"""A function like `peers.measure.measure`."""


def alternate(
    configurations: Sequence[Configuration],
    given: Mapping[str, Any],
    repeats: int,
    prefix: Path,
    *,
    measurer: Measurer = measure,
) -> dict[str, BenchResult]:
    """Measure each configuration once, then each again. Every measurement starts an engine; a round has one seed.

    Args:
        given: options of `sluice bench`, by name.
        prefix: each result is written to PREFIX-LABEL.json at once, so an interruption loses one measurement.

    Returns:
        The runs of all rounds in one result, by label.

    Raises:
        SetupError, ConfigError, BenchError: as `peers.measure.measure`; or all requests of a measurement failed.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {repeats}")
    for configuration in configurations:
        peer = peer_named(configuration.peer)
        peer.set_up()
        peer.prepare(configuration.settings)
    found: dict[str, BenchResult] = {}
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


def _joined(before: BenchResult | None, result: BenchResult) -> BenchResult:
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


def medians(result: BenchResult, measures: Sequence[Measure]) -> dict[str, float | None]:
    """Return the median of each number over the runs; None where a run lacks it."""
    found: list[Summary] = summaries(result)
    values = {measure.name: [measure.of(summary) for summary in found] for measure in measures}
    return {
        name: None if None in own else statistics.median(value for value in own if value is not None)
        for name, own in values.items()
    }
