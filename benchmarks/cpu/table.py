"""Prints medians side by side, the ratio to the best peer, and the limits of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cpu.record import Record
from benchmarks.cpu.rows import AFTER_PREFILLS, ROWS, TPOT, TTFT, Number, Row

WEIGHT_BYTES = 1_192_000_000
"""Bytes of Qwen3-0.6B in 16 bits: 596 million weights, the tied embedding counted once."""
KV_BYTES_PER_TOKEN = 114_688
LAYER_FLOP = 880_803_840
"""FLOP of a token in the layers' products: twice their 440 million weights."""


def table(record: Record, rows: Sequence[Row], ours: str, peers: Sequence[str]) -> str:
    """Return the table in Markdown: a line for each number of each row."""
    head = ["row", "number", *peers, f"{ours} / best peer", "aim", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        lines += [_line(record, row, number, ours, peers) for number in row.numbers]
    return "\n".join([*lines, "", *_limits(record, ours)])


def _line(record: Record, row: Row, number: Number, ours: str, peers: Sequence[str]) -> str:
    values = {peer: record.median(row.name, peer, number.name) for peer in peers}
    ratio = _ratio(values, ours, number)
    cells = [row.title, number.name, *(_shown(value, number) for value in values.values())]
    cells.append("" if ratio is None else f"{ratio:.2f}")
    cells.append("" if number.aim is None else f"{'>=' if number.unit == '/s' else '<='} {number.aim:.2f}")
    return f"| {' | '.join([*cells, _verdict(ratio, number)])} |"


def _ratio(values: dict[str, float | None], ours: str, number: Number) -> float | None:
    others = [value for peer, value in values.items() if peer != ours and value]
    own = values[ours]
    if own is None or not others:
        return None
    return own / (max(others) if number.unit == "/s" else min(others))


def _verdict(ratio: float | None, number: Number) -> str:
    if ratio is None or number.aim is None:
        return ""
    return "met" if (ratio >= number.aim if number.unit == "/s" else ratio <= number.aim) else "missed"


def _shown(value: float | None, number: Number) -> str:
    if value is None:
        return "failed"
    return f"{value:,.0f}" if number.unit == "/s" else f"{1000 * value:,.1f}"


def _limits(record: Record, ours: str) -> list[str]:
    """Return how close Sluice is to the limits of memory and arithmetic, for the rows that were measured."""
    rates = record.rates
    lines = [
        f"This machine reads {rates.read_bytes_per_second / 1e9:.1f} GB/s and multiplies bfloat16 through torch at"
        f" {rates.bfloat16_flop_per_second / 1e12:.2f} TFLOP/s, with {record.content['threads']} threads."
    ]
    floor = WEIGHT_BYTES / rates.read_bytes_per_second
    if (step := record.median("decode-1", ours, TPOT)) is not None:
        lines.append(f"- decode, batch 1: {step / floor:.2f}x the time to read the weights once (aim <= 1.3)")
    if (step := record.median("cached", ours, AFTER_PREFILLS)) is not None:
        read = WEIGHT_BYTES + 4 * 4024 * KV_BYTES_PER_TOKEN
        share = read / step / rates.read_bytes_per_second
        lines.append(f"- decode at 4,000 tokens: {share:.0%} of read bandwidth (aim >= 60%)")
    if (first := record.median("prefill", ours, TTFT)) is not None:
        share = 2048 * LAYER_FLOP / first / rates.bfloat16_flop_per_second
        lines.append(f"- prefill: {share:.0%} of that rate in the layers' products alone (aim >= 70%)")
    for row in ROWS:
        if row.undisturbed is not None:
            number = row.numbers[0].name
            alone, beside = record.median(row.undisturbed, ours, number), record.median(row.name, ours, number)
            if alone is not None and beside is not None:
                lines.append(f"- one processor taken: {beside / alone:.2f}x the undisturbed step (aim <= 2.5)")
    return lines
