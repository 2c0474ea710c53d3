"""`sluice models`: what is on this machine, and what one could begin with."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sluice.assembly.devices import resolve_here
from sluice.cli.models.bandwidth import measured_bandwidth
from sluice.cli.models.cached import CachedModel, cached_models, default_models, models_at
from sluice.cli.models.estimates import estimate_as_it_is
from sluice.cli.models.table import aligned
from sluice.config import ConfigError, EngineConfig
from sluice.device.machine import usable_cores
from sluice.models.catalog.estimate import Estimate, gigabytes
from sluice.models.catalog.suggested import SUGGESTED, Suggested

QUANTIZATIONS = ("none", "int8", "int4")


class _Found(NamedTuple):
    """A model on this machine."""

    model: CachedModel
    estimate: Estimate | None


def run_models(given: Mapping[str, Any], command: str) -> int:
    """List models. Returns the exit status.

    Args:
        given: the flags that were given, by name.
        command: what runs this program again.

    Raises:
        ConfigError: a bandwidth that is none.
        CheckpointError: there is no model at the path.
        ValueError: the folder is a file.
    """
    given_rate = given.get("memory_bandwidth")
    if given_rate is not None and not 0 < given_rate < math.inf:
        raise ConfigError(f"--memory-bandwidth must be a number above 0, in GB/s, got {given_rate:g}")
    place = given.get("path")
    cache = None if "download_dir" not in given else Path(given["download_dir"])
    if place is not None:
        models = models_at(Path(place).expanduser())
    else:
        models = [*(default_models() if cache is None else []), *cached_models(cache)]
    machine = resolve_here(EngineConfig())[0].config.model
    found = [_Found(model, estimate_as_it_is(model, machine)) for model in models]
    threads = usable_cores()
    bandwidth = measured_bandwidth(threads) if given_rate is None else given_rate * 1e9
    if given.get("as_json", False):
        print(json.dumps(_json(found, bandwidth, suggests=place is None), indent=2))
        return 0
    how = f"this machine's memory delivers {{}} GB/s to {threads} threads (measured now)"
    how = how if given_rate is None else "the memory delivers {} GB/s (--memory-bandwidth)"
    where = None if place is not None else given.get("download_dir")
    blocks = [_table_of_found(found, bandwidth, command, where)]
    blocks += [suggestions(command, bandwidth)] if place is None else []
    print("\n\n".join([*blocks, _meaning(how.format(f"{bandwidth / 1e9:.1f}"))]))
    return 0


def _json(found: Sequence[_Found], bandwidth: float, *, suggests: bool) -> dict[str, Any]:
    own = [{**model.as_json(), **_figures(estimate, bandwidth)} for model, estimate in found]
    suggested = {"suggested": [_as_json(each, bandwidth) for each in SUGGESTED]} if suggests else {}
    return {"cached": own, **suggested, "memory_bandwidth": round(bandwidth)}


def _figures(estimate: Estimate | None, bandwidth: float) -> dict[str, Any]:
    if estimate is None:
        return {"weights_bytes": None, "most_tokens_per_second": None, "kv_token_bytes": None}
    return {
        "weights_bytes": round(estimate.weights_bytes),
        "most_tokens_per_second": round(estimate.rate(bandwidth), 1),
        "kv_token_bytes": estimate.sizes.token_bytes,
    }


def _table_of_found(found: Sequence[_Found], bandwidth: float, command: str, folder: str | None) -> str:
    if not found:
        return f"No model in {folder or 'the cache of huggingface_hub'}."
    place = [] if folder is None else ["--download-dir", folder]
    rows = [("on this machine", "size", "weights", "memory, tokens/s", "to serve it")]
    for model, estimate in found:
        verdict = model.verdict
        how = " ".join([command, "serve", *map(shlex.quote, [*model.arguments, *place])])
        how = f"no: {verdict.problem}" if verdict.problem is not None else how
        note = f"  ({verdict.note})" if verdict.note is not None else ""
        needs = "-" if estimate is None else _shown(estimate, bandwidth)
        rows.append((model.id, gigabytes(model.bytes), verdict.weights or "-", needs, f"{how}{note}"))
    return aligned(rows)


def suggestions(command: str, bandwidth: float) -> str:
    """Return a table of small models, with what their shapes say of memory and speed.

    Args:
        command: what runs this program again.
        bandwidth: of the memory, in bytes a second.
    """
    rows = [("to begin with", "licence", *(f"memory, tokens/s{_behind(q)}" for q in QUANTIZATIONS), "command")]
    for each in SUGGESTED:
        shown = [_shown(each.estimate(quantization), bandwidth) for quantization in QUANTIZATIONS]
        rows.append((each.id, each.licence, *shown, f"{command} serve {each.id}"))
    return aligned(rows)


def _meaning(how: str) -> str:
    return (
        "Memory is that of the weights. The tokens/s of one stream are a bound, not a promise: every token reads all\n"
        f"weights once, and {how}. A head that is the embedding\n"
        "is held twice in 16 bits and read once. int8 and int4 are --quantization."
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
