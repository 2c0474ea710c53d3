"""Prints medians side by side, the ratios of each turn, and the machine's rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.cpu.contenders import Contender
from benchmarks.cpu.ratios import Quartiles, over_floor, throughput_ratio, times_as_fast, values
from benchmarks.cpu.record import Measured, Record
from benchmarks.cpu.rows import Number, Row

BATCHES = (64, 32)


def table(record: Record, rows: Sequence[Row], contenders: Sequence[Contender]) -> str:
    """Return the table in Markdown: a line for each number of each row.

    A cell of another contender than the first has its median, and how many times as fast the first is.
    """
    ours, *others = contenders
    head = ["row", "number", ours.label, "over floor", *(other.label for other in others)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        lines += [_line(record, row, number, ours, others) for number in row.numbers]
    return "\n".join([*lines, "", *_batches(record, rows, contenders), *_machine(record, rows, contenders)])


def _line(record: Record, row: Row, number: Number, ours: Contender, others: Sequence[Contender]) -> str:
    cells = [_median(record, row, number, ours), _shown(over_floor(record, row, number, ours))]
    for other in others:
        ratio = times_as_fast(record, row, number, ours, other)
        cells.append(" ".join(filter(None, [_median(record, row, number, other), _shown(ratio)])))
    unit = "" if number.is_rate else ", ms"
    return f"| {' | '.join([row.title, number.name + unit, *cells])} |"


def _median(record: Record, row: Row, number: Number, contender: Contender) -> str:
    if row.only_ours and not contender.is_ours:
        return ""
    found = Quartiles.of(value for value in values(record, row, contender, number) if value is not None)
    if found is None:
        return "failed"
    return f"{found.median:,.0f}" if number.is_rate else f"{1000 * found.median:,.1f}"


def _shown(ratio: Quartiles | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _batches(record: Record, rows: Sequence[Row], contenders: Sequence[Contender]) -> list[str]:
    """Return how much throughput the larger of two batches gains."""
    large, small = (next((row for row in rows if row.name == f"decode-{batch}"), None) for batch in BATCHES)
    if large is None or small is None:
        return []
    found = {ours.label: throughput_ratio(record, large, small, BATCHES, ours) for ours in contenders if ours.is_ours}
    what = f"tokens a second of batch {BATCHES[0]} over batch {BATCHES[1]}"
    return [f"- {label}: {what}: {_shown(ratio)}" for label, ratio in found.items() if ratio is not None]


def _machine(record: Record, rows: Sequence[Row], contenders: Sequence[Contender]) -> list[str]:
    runs: list[Measured] = [
        run for row in rows for contender in contenders for run in record.runs(row.name, contender.label)
    ]
    rates = [run.rates for run in runs if run.rates is not None]
    read = _range(rate.read_bytes_per_second / 1e9 for rate in rates)
    multiply = _range(rate.bfloat16_flop_per_second / 1e12 for rate in rates)
    load = _range(run.load for run in runs)
    return [
        f"- The machine read {read} GB/s and multiplied bfloat16 through torch at {multiply} TFLOP/s, with"
        f" {record.content['threads']} threads. Load average: {load}. Medians (quartiles).",
    ]


def _range(found: Iterable[float]) -> str:
    spread = Quartiles.of(found)
    return "?" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"
