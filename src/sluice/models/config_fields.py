"""Readers of fields that the configs of several families have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sluice.attention.spec import LayerHeads
from sluice.attention.states import StateSpec
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig, CheckpointError, Fields
from sluice.models.layers import read_activation
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan
from sluice.models.rope import Rope, rope_section
from sluice.models.router import Router
from sluice.models.spec import BlockDiffusion, ExpertSizes, ModelSpec


def read_spec(
    checkpoint: CheckpointConfig,
    dtype: torch.dtype,
    rope: Rope,
    *,
    head_dim: int | None = None,
    diffusion: BlockDiffusion | None = None,
) -> ModelSpec:
    """Read the sizes of a decoder.

    Args:
        rope: may stretch the context.
        head_dim: of a config that names none; None: the hidden size is shared by the heads.

    Raises:
        CheckpointError: a field is missing, out of range, or contradicts another.
    """
    config = checkpoint.fields
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}")
    return ModelSpec(
        architecture=checkpoint.architecture,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, num_heads, head_dim),
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        max_model_len=rope.context(config.integer("max_position_embeddings")),
        eos_token_ids=checkpoint.eos_token_ids,
        media_token_ids=checkpoint.media_token_ids,
        dtype=dtype,
        diffusion=diffusion,
    )


def _head_dim(config: Fields, num_heads: int, default: int | None) -> int:
    hidden_size = config.integer("hidden_size")
    if config.get("head_dim") is None and default is None and hidden_size % num_heads:
        raise config.error("hidden_size", f"a multiple of num_attention_heads = {num_heads}")
    head_dim = config.integer("head_dim", default or hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(f"{config.source}: head_dim must be even for rotary embedding, got {head_dim}")
    return head_dim


def read_bias(config: Fields, name: str, fixed: bool | None = None) -> bool:
    """Read whether layers have biases.

    Args:
        fixed: the value that the architecture requires; None: the config decides, by default there are none.
    """
    given = config.flag(name, bool(fixed))
    if fixed is not None and given != fixed:
        raise config.error(name, f"{str(fixed).lower()} for this architecture")
    return given


def read_cap(config: Fields, name: str) -> float | None:
    """Read a cap of scores or logits; null and 0 mean that there is none."""
    return None if config.get(name) in (None, 0) else config.number(name)


PARTIAL = "partial_rotary_factor"


def read_rotary_dim(config: Fields, head_dim: int, default: float = 1.0) -> int:
    """Return the leading elements of a head that are rotated.

    Args:
        default: the rotated part of a config that does not say it.
    """
    share = rope_section(config).number(PARTIAL, config.number(PARTIAL, default))
    size = int(head_dim * share)
    if size % 2 or not 0 < size <= head_dim:
        raise CheckpointError(f"{config.source}: {PARTIAL} = {share} must leave an even part of heads of {head_dim}")
    return size


def read_kinds(config: Fields, num_layers: int, default: list[str]) -> list[str]:
    """Return `layer_types`: whether each layer has full or sliding attention."""
    kinds = config.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {FULL, SLIDING}:
        raise config.error("layer_types", f"{num_layers} times {FULL} or {SLIDING}")
    return kinds


def read_state_layers(config: Fields, num_layers: int, names: Mapping[str, bool], default: list[bool]) -> list[bool]:
    """Return which layers have a state in the place of attention, by `layer_types`.

    Args:
        names: of the kinds of layers -> whether they have a state.
        default: of a config without `layer_types`.
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in names for kind in kinds):
        raise config.error("layer_types", f"{num_layers} times {' or '.join(names)}")
    return [names[kind] for kind in kinds]


def read_time_limit(config: Fields) -> tuple[float, float]:
    """Return the bounds of the time step of Mamba-2."""
    given = config.get("time_step_limit")
    if given is None:
        return 0.0, math.inf
    bounds = [_number(each) for each in given] if isinstance(given, list | tuple) else []
    if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1]:
        raise config.error("time_step_limit", "two numbers of at least 0, the lower one first")
    return bounds[0], bounds[1]


def _number(value: object) -> float:
    """Return a number, also one that transformers writes as `{"__float__": "Infinity"}`; NaN for other values."""
    if isinstance(value, dict) and value == {"__float__": "Infinity"}:
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def with_states(spec: ModelSpec, state: StateSpec, count: int, attending: int, config: Fields) -> ModelSpec:
    """Return the sizes of a model some of whose layers have a state in the place of keys and values.

    Args:
        state: of each such layer.
        count: how many there are.
        attending: layers with keys and values.

    Raises:
        CheckpointError: no layer has keys and values.
    """
    if not attending:
        raise CheckpointError(f"{config.source}: a model without layers of attention is not supported")
    heads = (LayerHeads(spec.num_kv_heads, spec.head_dim),) * attending
    equal = attending == spec.num_layers
    return replace(spec, state=state if count else None, num_states=count, unequal_kv=() if equal else heads)


def windows_of(config: Fields, kinds: list[str], default: int | None = None) -> list[int | None]:
    """Return the window of each layer, those of sliding attention being `sliding_window`.

    Args:
        default: the window of a config that names none.
    """
    window = config.integer("sliding_window", default) if SLIDING in kinds else None
    return [window if kind == SLIDING else None for kind in kinds]


def decoder_config(
    config: Fields,
    spec: ModelSpec,
    layers: Sequence[LayerPlan],
    *,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    norm_eps: float = 1e-6,
    tied: bool = False,
    inner_size: int | None = None,
    **options: Any,
) -> DecoderConfig:
    """Read what nearly all configs have.

    Args:
        activation: the field of the MLP's activation, and its value in a config that has none.
        norm_eps: of a config that has none.
        tied: whether the head is the embedding in a config that does not say it.
        inner_size: of the MLP, in a config that has none.
        options: further fields of `DecoderConfig`.
    """
    return DecoderConfig(
        spec=spec,
        layers=tuple(layers),
        inner_size=config.integer("intermediate_size", inner_size),
        activation=read_activation(config, *activation),
        norm_eps=config.number("rms_norm_eps", norm_eps),
        tied=config.flag("tie_word_embeddings", tied),
        **options,
    )


def read_router(config: Fields, of_chosen: str = "num_experts_per_tok", **options: Any) -> Router:
    """Read the numbers of experts.

    Args:
        of_chosen: the field with the number of a token's experts.
        options: further fields of `Router`.

    Raises:
        CheckpointError: a number is missing, or out of range.
    """
    name = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    experts, chosen = config.integer(name), config.integer(of_chosen)
    if chosen > experts:
        raise config.error(of_chosen, f"at most {name} = {experts}")
    return Router(experts=experts, chosen=chosen, **options)


def with_experts(config: DecoderConfig, plans: Sequence[ExpertsPlan | None], *, has_mlp: bool = False) -> DecoderConfig:
    """Return a config whose layers have mixtures of experts.

    Args:
        plans: of each layer; None: it has an MLP. The others are equal.
        has_mlp: they have an MLP beside the experts.
    """
    layers = tuple(
        replace(layer, experts=plan, has_mlp=plan is None or has_mlp)
        for layer, plan in zip(config.layers, plans, strict=True)
    )
    sparse = [plan for plan in plans if plan is not None]
    if not sparse:
        return config
    router, matrices = sparse[0].router, 3 * config.spec.hidden_size * sparse[0].inner_size
    sizes = ExpertSizes(len(sparse), router.experts, router.chosen, matrices)
    return replace(config, layers=layers, spec=replace(config.spec, experts=sizes))
