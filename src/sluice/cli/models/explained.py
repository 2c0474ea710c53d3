"""What `sluice explain` adds of a model's memory and speed, from its shapes; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.cli.models.bandwidth import measured_bandwidth
from sluice.cli.models.estimates import estimate_of
from sluice.cli.models.table import aligned
from sluice.config import EngineConfig
from sluice.models.catalog.estimate import Estimate, gigabytes
from sluice.models.catalog.sizes import ModelSizes, StateBytes
from sluice.models.checkpoint import CheckpointError
from sluice.models.registry import DIFFUSION_ARCHITECTURES

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
    try:
        estimate, how = estimate_of(config.model)
    except CheckpointError as error:
        return [Fact("weights_bytes", None, "-", f"not known: {error}")]
    sizes = estimate.sizes
    are_equal = sizes.kv == 2 * sizes.layers * sizes.kv_heads * sizes.head_dim
    heads = f" of {sizes.kv_heads} KV heads of {sizes.head_dim}" if are_equal else " of different sizes"
    attending = sizes.layers if sizes.states is None else sizes.states.attending
    if sizes.states is not None:
        heads = f" of {sizes.layers}, of {sizes.kv_heads} KV heads of {sizes.head_dim}"
    facts = [
        Fact("weights_bytes", round(estimate.weights_bytes), gigabytes(estimate.weights_bytes), how),
        Fact(
            "kv_token_bytes",
            sizes.token_bytes,
            gigabytes(sizes.token_bytes),
            f"KV of a token in 16 bits: {attending} layers{heads}",
        ),
    ]
    if sizes.states is not None:
        facts += _states(sizes.states, sizes.token_bytes)
    facts.append(
        Fact(
            "max_model_len", sizes.max_model_len, f"{sizes.max_model_len} tokens", "the model's context, of one request"
        )
    )
    return facts + (_speed(estimate, config) if config.model.device == "cpu" else [])


def _states(states: StateBytes, token_bytes: int) -> list[Fact]:
    """Return what recurrent states take."""
    slot, record = states.slot, states.record
    as_kv = f", as the KV of {-(-record // token_bytes)} tokens" if token_bytes else ""
    return [
        Fact("state_bytes", slot, gigabytes(slot), f"recurrent states of a running request: {states.layers} layers"),
        Fact("record_bytes", record, gigabytes(record), f"a record of them, behind a cached prefix{as_kv}"),
    ]


def _speed(estimate: Estimate, config: EngineConfig) -> list[Fact]:
    """Return what bounds a stream's speed, if a pass over the weights yields one token."""
    several = _several_tokens(estimate.sizes, config)
    if several is not None:
        return [Fact("most_tokens_per_second", None, "-", f"not known: {several}")]
    threads = config.model.threads or 1
    bandwidth = measured_bandwidth(threads)
    what = "all weights" if estimate.sizes.experts is None else "the weights of its experts and all others"
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
            f"a bound for one stream: every token reads {what}",
        ),
    ]


def _several_tokens(sizes: ModelSizes, config: EngineConfig) -> str | None:
    """Return why a pass over the weights yields several tokens; None: it yields one."""
    if sizes.architecture in DIFFUSION_ARCHITECTURES:
        return "a pass of block diffusion over the weights may fill in several tokens"
    if config.speculative.speculative_algorithm is not None:
        return "with --speculative-algorithm, a pass over the weights may yield several tokens"
    return None


def facts_table(facts: list[Fact]) -> str:
    """Return the figures as a block for a terminal."""
    rows = [(f"  {fact.name}", fact.shown, fact.reason) for fact in facts]
    return "\n".join(["estimate:", aligned(rows)])


def facts_json(facts: list[Fact]) -> Mapping[str, Any]:
    """Return the figures as `sluice explain --json` has them, in the form of the options."""
    return {fact.name: {"value": fact.value, "reason": fact.reason, "group": "estimate"} for fact in facts}
