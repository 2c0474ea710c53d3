"""What `sluice explain` adds of a model's memory and speed, from its shapes; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from sluice.cli.models.bandwidth import measured_bandwidth
from sluice.cli.models.command import aligned
from sluice.config import EngineConfig
from sluice.models.catalog.estimate import NUMBER_SIZES, Estimate, gigabytes
from sluice.models.catalog.sizes import ModelSizes, SizesError
from sluice.models.catalog.suggested import SUGGESTED
from sluice.models.families.llama_config import DIFFUSION_ARCHITECTURES

Value = float | int | None


class Fact(NamedTuple):
    """One figure, with how it is known."""

    name: str
    value: Value
    shown: str
    reason: str


def model_facts(config: EngineConfig) -> list[Fact]:
    """Return the figures of the model that the options name.

    Args:
        config: with options resolved for this machine.
    """
    model = config.model
    try:
        sizes, source = _sizes(model.model, model.revision, model.download_dir)
        quantization = model.quantization or "none"
        if quantization not in NUMBER_SIZES:
            raise SizesError(f"--quantization {quantization} depends on the checkpoint")
    except SizesError as error:
        return [Fact("weights_bytes", None, "-", f"not known: {error}")]
    estimate = Estimate(sizes, quantization)
    kind = "16 bits" if quantization == "none" else quantization
    facts = [
        Fact(
            "weights_bytes",
            round(estimate.weights_bytes),
            gigabytes(estimate.weights_bytes),
            f"{sizes.stored / 1e6:.0f} million numbers in {kind}{_copied(sizes, quantization)} ({source})",
        ),
        Fact(
            "kv_token_bytes",
            sizes.token_bytes,
            gigabytes(sizes.token_bytes),
            f"KV of a token in 16 bits: {sizes.layers} layers of {sizes.kv_heads} KV heads of {sizes.head_dim}",
        ),
    ]
    return facts + (_speed(estimate, config) if model.device == "cpu" else [])


def _copied(sizes: ModelSizes, quantization: str) -> str:
    is_tied = sizes.stored == sizes.weights
    return ", the embedding twice" if is_tied and quantization == "none" else ""


def _speed(estimate: Estimate, config: EngineConfig) -> list[Fact]:
    """Return what bounds a stream's speed, if a pass over the weights yields one token."""
    several = _several_tokens(estimate.sizes, config)
    if several is not None:
        return [Fact("most_tokens_per_second", None, "-", f"not known: {several}")]
    threads = config.model.threads or 1
    bandwidth = measured_bandwidth(threads)
    return [
        Fact(
            "memory_bandwidth",
            round(bandwidth),
            f"{bandwidth / 1e9:.1f} GB/s",
            f"measured now: the fastest of a few sums over 256 MiB by {threads} threads",
        ),
        Fact(
            "most_tokens_per_second",
            round(estimate.rate(bandwidth), 1),
            f"{estimate.rate(bandwidth):.1f} tokens/s",
            "a bound for one stream: every token reads all weights",
        ),
    ]


def _several_tokens(sizes: ModelSizes, config: EngineConfig) -> str | None:
    """Return why a pass over the weights yields several tokens; None: it yields one."""
    if sizes.architecture in DIFFUSION_ARCHITECTURES:
        return "a pass of block diffusion over the weights may fill in several tokens"
    if config.speculative.speculative_algorithm is not None:
        return "with --speculative-algorithm, a pass over the weights may yield several tokens"
    return None


def _sizes(model: str, revision: str | None, folder: str | None) -> tuple[ModelSizes, str]:
    """Return the sizes of a model that is on this machine or suggested, and where they are from.

    Raises:
        SizesError: it is neither, or its sizes are not those of a dense model.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelSizes.read(path), "config.json"
    cached = None
    with suppress(HFValidationError):  # no hub id
        cached = try_to_load_from_cache(model, "config.json", cache_dir=folder, revision=revision)
    if isinstance(cached, str):
        return ModelSizes.read(Path(cached)), "config.json in the hub's cache"
    for each in SUGGESTED:
        if each.id == model:
            return ModelSizes.of(each.config, model), "known sizes"
    raise SizesError(f"{model} is not on this machine")


def facts_table(facts: list[Fact]) -> str:
    """Return the figures as a block for a terminal."""
    rows = [(f"  {fact.name}", fact.shown, fact.reason) for fact in facts]
    return "\n".join(["estimate:", aligned(rows)])


def facts_json(facts: list[Fact]) -> Mapping[str, Any]:
    """Return the figures as `sluice explain --json` has them, in the form of the options."""
    return {fact.name: {"value": fact.value, "reason": fact.reason, "group": "estimate"} for fact in facts}
