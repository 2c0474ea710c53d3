"""`sluice models`: what is on this machine, and what one could begin with."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.cli.models.bandwidth import measured_bandwidth
from sluice.cli.models.cached import CachedModel, cached_models
from sluice.config import ConfigError
from sluice.device.machine import usable_cores
from sluice.models.catalog.estimate import Estimate, gigabytes
from sluice.models.catalog.suggested import SUGGESTED, Suggested

QUANTIZATIONS = ("none", "int8", "int4")


def run_models(given: Mapping[str, Any], command: str) -> int:
    """List models. Returns the exit status.

    Args:
        given: the flags that were given, by name.
        command: what runs this program again.

    Raises:
        ConfigError: a bandwidth that is none.
        ValueError: the folder is a file.
    """
    folder = None if "download_dir" not in given else Path(given["download_dir"])
    models, threads = cached_models(folder), usable_cores()
    given_rate = given.get("memory_bandwidth")
    if given_rate is not None and not 0 < given_rate < math.inf:
        raise ConfigError(f"--memory-bandwidth must be a number above 0, in GB/s, got {given_rate:g}")
    bandwidth = measured_bandwidth(threads) if given_rate is None else given_rate * 1e9
    if given.get("as_json", False):
        suggested = [_as_json(each, bandwidth) for each in SUGGESTED]
        content = {
            "cached": [model.as_json() for model in models],
            "suggested": suggested,
            "memory_bandwidth": round(bandwidth),
        }
        print(json.dumps(content, indent=2))
        return 0
    print(_cached_table(models, command, given.get("download_dir")))
    print()
    how = f"this machine's memory delivers {{}} GB/s to {threads} threads (measured now)"
    how = how if given_rate is None else "the memory delivers {} GB/s (--memory-bandwidth)"
    print(suggestions(command, bandwidth, how.format(f"{bandwidth / 1e9:.1f}")))
    return 0


def _cached_table(models: Sequence[CachedModel], command: str, folder: str | None) -> str:
    if not models:
        return f"No model in {folder or 'the cache of huggingface_hub'}."
    place = [] if folder is None else ["--download-dir", folder]
    rows = [("on this machine", "size", "weights", "to serve it")]
    for model in models:
        verdict = model.verdict
        how = f"{command} serve {shlex.join([*model.arguments, *place])}"
        how = f"no: {verdict.problem}" if verdict.problem is not None else how
        note = f"  ({verdict.note})" if verdict.note is not None else ""
        rows.append((model.id, gigabytes(model.bytes), verdict.weights or "-", f"{how}{note}"))
    return aligned(rows)


def suggestions(command: str, bandwidth: float, how: str) -> str:
    """Return a table of small models, with what their shapes say of memory and speed.

    Args:
        command: what runs this program again.
        bandwidth: of the memory, in bytes a second.
        how: what it is, in words.
    """
    rows = [("to begin with", "licence", *(f"memory, tokens/s{_behind(q)}" for q in QUANTIZATIONS), "command")]
    for each in SUGGESTED:
        shown = [_shown(each.estimate(quantization), bandwidth) for quantization in QUANTIZATIONS]
        rows.append((each.id, each.licence, *shown, f"{command} serve {each.id}"))
    return (
        f"{aligned(rows)}\n\nMemory is that of the weights. The tokens/s of one stream are a bound, not a promise:"
        f" every token reads all\nweights, and {how}. int8 and int4 are --quantization."
    )


def _behind(quantization: str) -> str:
    return "" if quantization == "none" else f" in {quantization}"


def _shown(estimate: Estimate, bandwidth: float) -> str:
    return f"{gigabytes(estimate.weights_bytes)}, <= {estimate.rate(bandwidth):.0f}"


def _as_json(each: Suggested, bandwidth: float) -> dict[str, Any]:
    estimates = {name: each.estimate(name) for name in QUANTIZATIONS}
    return {
        "id": each.id,
        "licence": each.licence,
        "weights_bytes": {name: round(found.weights_bytes) for name, found in estimates.items()},
        "most_tokens_per_second": {name: round(found.rate(bandwidth), 1) for name, found in estimates.items()},
        "kv_token_bytes": estimates["none"].sizes.token_bytes,
    }


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table: columns as wide as they need, two spaces apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
