"""Measures from which length on loading a prefix is faster than computing it, and compares with the formula.

    computing  FLOP(n) / F,   FLOP(n) = 2 n L P_l + 4 L Hq h n (n + 1) / 2
    loading    bytes(n) / B,  bytes(n) = 2 n L Hkv h b

F is measured on one long prompt, B on its load; the other lengths are predicted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.disk.driving import Driven, prompt


class Costs(NamedTuple):
    """The costs of a prompt of some length."""

    flop: float
    bytes: float


def costs(config: dict[str, Any], length: int, itemsize: int) -> Costs:
    """Compute the costs by the formula, for models with three matrices in the feed-forward layer."""
    layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    kv_heads, inner = config.get("num_key_value_heads", heads), config["intermediate_size"]
    head = config.get("head_dim", hidden // heads)
    params = hidden * head * (heads + 2 * kv_heads) + heads * head * hidden + 3 * hidden * inner
    attention = 4 * layers * heads * head * length * (length + 1) / 2
    return Costs(2 * length * layers * params + attention, 2 * length * layers * kv_heads * head * itemsize)


def measure(
    checkpoint: Path, lengths: Sequence[int], folder: Path, repeats: int, **options: Any
) -> list[dict[str, Any]]:
    """Measure the TTFT of prompts computed and of the same ones loaded. Other prompts flush the pool in between."""
    config = json.loads((checkpoint / "config.json").read_text())
    disk, disk_bytes = folder / "crossover", options.pop("disk_bytes")
    pool = 2 * max(lengths)
    driven = Driven.start(checkpoint, max_total_tokens=pool, kv_disk=str(disk), kv_disk_bytes=disk_bytes, **options)
    rows = []
    for length in lengths:
        computed, loaded, seeds = [], [], range(10_000 + length * 10, 10_000 + length * 10 + repeats)
        computed += [driven.ask(prompt(length + 1, seed)).ttft for seed in seeds]
        driven.finish_copies()
        for number in range(-(-pool // max(lengths))):  # evicts the prefixes cached on the device
            driven.ask(prompt(max(lengths), 99_000 + length * 100 + number))
        driven.finish_copies()
        for seed in seeds:
            request = driven.ask(prompt(length + 1, seed))
            assert request.end is not None
            if request.end.num_disk_tokens >= length - 64:
                loaded.append(request.ttft)
        cost = costs(config, length, driven.info.dtype.itemsize)
        row = {"tokens": length, "computed_ms": _ms(computed), "loaded_ms": _ms(loaded), **cost._asdict()}
        rows.append(row)
        print(f"  {row}", flush=True)
    driven.close()
    disk.unlink()
    longest = rows[-1]
    rate, bandwidth = longest["flop"] / longest["computed_ms"], longest["bytes"] / longest["loaded_ms"]
    for row in rows:
        row["predicted_computed_ms"] = round(row["flop"] / rate, 1)
        row["predicted_loaded_ms"] = round(row["bytes"] / bandwidth, 1)
        print(f"  {row}", flush=True)
    return rows


def _ms(seconds: Sequence[float]) -> float:
    return round(1000 * min(seconds), 1) if seconds else float("nan")
