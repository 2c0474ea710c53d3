"""Ratios of what was measured in one turn, with their spread: the machine's speed of the minute cancels out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cpu.contenders import Contender
from benchmarks.cpu.record import Measured, Record
from benchmarks.cpu.rows import WHOLE, Floor, Number, Row


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median and quartiles of at least one value."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quartiles | None:
        """Return None if there are no values."""
        found = list(values)
        if len(found) < 2:
            return cls(*found * 3) if found else None
        return cls(*statistics.quantiles(found, n=4, method="inclusive"))


def values(record: Record, row: Row, contender: Contender, number: Number) -> list[float | None]:
    """Return the number in each turn; None where it failed."""
    return [run.values.get(number.name) for run in record.runs(row.name, contender.label)]


def times_as_fast(record: Record, row: Row, number: Number, ours: Contender, other: Contender) -> Quartiles | None:
    """Return how many times as fast `ours` is, over the turns in which both have the number."""
    pairs = zip(values(record, row, ours, number), values(record, row, other, number), strict=False)
    known = [(a, b) for a, b in pairs if a and b]
    return Quartiles.of(a / b if number.is_rate else b / a for a, b in known)


def over_floor(record: Record, row: Row, number: Number, contender: Contender) -> Quartiles | None:
    """Return the number over its floor, each turn's from the rates just before it; None without a floor."""
    runs = record.runs(row.name, contender.label)
    pairs = [(run.values.get(number.name), _floor(record, number, contender, run)) for run in runs]
    return Quartiles.of(value / floor for value, floor in pairs if value and floor)


def _floor(record: Record, number: Number, contender: Contender, run: Measured) -> float | None:
    """Return the floor in seconds."""
    size = record.weights_bytes(contender.label)
    if number.floor is Floor.READ and run.rates is not None and size is not None:
        return size / run.rates.read_bytes_per_second
    if number.floor is Floor.MULTIPLY and run.rates is not None:
        return 2 * WHOLE * record.layer_weights / run.rates.bfloat16_flop_per_second
    return None


def throughput_ratio(
    record: Record, large: Row, small: Row, batches: Sequence[int], ours: Contender
) -> Quartiles | None:
    """Return the tokens a second of a large batch over those of a small one, in the same turns."""
    number = large.numbers[0]
    pairs = zip(values(record, large, ours, number), values(record, small, ours, number), strict=False)
    return Quartiles.of(batches[0] * b / (batches[1] * a) for a, b in pairs if a and b)
