"""Qwen3.5, Qwen3.6 and Qwen3-Next (text): gated delta nets in most layers, and gated attention in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from sluice.attention.states import StateSpec
from sluice.models.base import STACKS, HeadRows, WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import FULL, CheckpointConfig, Fields
from sluice.models.config_fields import (
    PARTIAL,
    decoder_config,
    read_bias,
    read_rotary_dim,
    read_router,
    read_spec,
    read_state_layers,
    with_experts,
    with_states,
)
from sluice.models.decoder import Decoder
from sluice.models.families.qwen3_moe import dense_layers
from sluice.models.families.qwen3_vl import GRIDS
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan, QKNorm, StateKind, StatePlan
from sluice.models.rope import read_rope

LINEAR = "linear_attention"
"""Name in `layer_types` of a layer with a gated delta net."""
HEAD_DIM = 256
ROTATED = 0.25
"""Part of a head that is rotated, in a config that does not say it."""
TAKES_TURNS = "linear_value_heads_take_turns"
"""Field that is true of GGUF files, whose value heads are in another order than those of other checkpoints."""
RENAMED = (
    ("linear_attn.conv1d", "state.conv"),
    ("linear_attn.A_log", "state.decay_rate"),
    ("linear_attn.norm", "state.output_norm"),
    ("linear_attn", "state"),
)
OF_EXPERTS = (("shared_expert", "shared_mlp"), ("shared_expert_gate", "shared_gate"))
PLUS_ONE = (".input_layernorm.weight", ".post_attention_layernorm.weight", ".q_norm.weight", ".k_norm.weight")
RULES = WeightRules(
    renamed=(*RENAMED, *OF_EXPERTS),
    stacks=STACKS,
    plus_one=(*PLUS_ONE, ".norm.weight"),
    negative_exp=("state.decay_rate",),
    convolutions=("state.conv.weight",),
)


def _has_state(config: Fields, num_layers: int) -> list[bool]:
    """Return which layers have a gated delta net."""
    interval = config.integer("full_attention_interval", 4)
    default = [(number + 1) % interval != 0 for number in range(num_layers)]
    return read_state_layers(config, num_layers, {FULL: False, LINEAR: True}, default)


def _read_state(config: Fields, dtype: torch.dtype) -> StateSpec:
    """Read the sizes of a layer's state."""
    key_heads, value_heads = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
    key_dim, value_dim = config.integer("linear_key_head_dim", 128), config.integer("linear_value_head_dim", 128)
    if value_heads % key_heads:
        raise config.error("linear_num_value_heads", f"a multiple of linear_num_key_heads = {key_heads}")
    return StateSpec(
        channels=2 * key_heads * key_dim + value_heads * value_dim,
        taps=config.integer("linear_conv_kernel_dim", 4, minimum=2),
        dtype=dtype,
        key_heads=key_heads,
        key_dim=key_dim,
        value_heads=value_heads,
        value_dim=value_dim,
        takes_turns=config.flag(TAKES_TURNS, False),
    )


class Qwen35(Decoder):
    """Qwen3.5 and Qwen3.6, dense."""

    layer = PreNormLayer
    rules = RULES
    reads: ClassVar[tuple[str, ...]] = (PARTIAL,)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, rope = checkpoint.fields, read_rope(checkpoint.fields, also=(PARTIAL, *GRIDS))
        spec = read_spec(checkpoint, dtype, rope, head_dim=HEAD_DIM)
        if not config.flag("attn_output_gate", True):
            raise config.error("attn_output_gate", "true for this architecture")
        if config.text("hidden_act", "silu") not in ("silu", "swish"):
            raise config.error("hidden_act", "silu for this architecture")
        has_state, state = _has_state(config, spec.num_layers), _read_state(config, dtype)
        eps, scale = config.number("rms_norm_eps", 1e-6), spec.head_dim**-0.5
        plan = StatePlan(kind=StateKind.GATED_DELTA, inner_size=state.value_heads * state.value_dim, norm_eps=eps)
        bias = read_bias(config, "attention_bias")
        return decoder_config(
            config,
            with_states(spec, state, sum(has_state), len(has_state) - sum(has_state), config),
            [LayerPlan(scale, state=plan) if each else LayerPlan(scale, None, rope) for each in has_state],
            inner_size=cls.inner_size(config),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm.HEAD,
            rotary_dim=read_rotary_dim(config, spec.head_dim, ROTATED),
            has_output_gate=True,
        )

    @classmethod
    def inner_size(cls, config: Fields) -> int | None:
        """Return the inner size of a config without `intermediate_size`; None: it must have one."""
        return None


class Qwen35MoE(Qwen35):
    """Qwen3.5 and Qwen3.6 with a mixture of experts in each layer, and an MLP with a gate beside it."""

    reads = (PARTIAL, "num_experts", "num_local_experts")

    @classmethod
    def inner_size(cls, config: Fields) -> int | None:
        return config.integer("moe_intermediate_size")

    @classmethod
    def renorm_eps(cls, config: Fields) -> float | None:
        """Return what is added to the sum that weights are divided by; None: they are not divided."""
        return 0.0

    @classmethod
    def dense_layers(cls, config: Fields, num_layers: int) -> set[int]:
        """Return the layers that have an MLP alone."""
        return set()

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, read = checkpoint.fields, super().read(checkpoint, dtype)
        plan = ExpertsPlan(
            router=read_router(config, renorm_eps=cls.renorm_eps(config)),
            inner_size=config.integer("moe_intermediate_size"),
            activation=read.activation,
            shared_size=config.integer("shared_expert_intermediate_size"),
            has_shared_gate=True,
        )
        dense = cls.dense_layers(config, read.spec.num_layers)
        return with_experts(read, [None if number in dense else plan for number in range(read.spec.num_layers)])


class Qwen3Next(Qwen35MoE):
    """Qwen3-Next, whose gated delta nets are stored by k head."""

    rules = replace(
        RULES,
        head_rows=(
            HeadRows(
                "state.in_proj_qkvz.weight",
                (("state.in_proj_qkv.weight", ("k", "k", "v")), ("state.in_proj_z.weight", ("v",))),
            ),
            HeadRows(
                "state.in_proj_ba.weight", (("state.in_proj_b.weight", ("1",)), ("state.in_proj_a.weight", ("1",)))
            ),
        ),
    )

    @classmethod
    def renorm_eps(cls, config: Fields) -> float | None:
        return 0.0 if config.flag("norm_topk_prob", True) else None

    @classmethod
    def dense_layers(cls, config: Fields, num_layers: int) -> set[int]:
        return dense_layers(config, num_layers)
