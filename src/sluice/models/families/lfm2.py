"""LFM2 and LFM2.5: short convolutions in most layers, and attention in the others."""

from __future__ import annotations

import torch

from sluice.attention.states import StateSpec
from sluice.models.base import STACKS, WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import FULL, CheckpointConfig, Fields
from sluice.models.config_fields import read_bias, read_router, read_spec, read_state_layers, with_experts, with_states
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan, QKNorm, StateKind, StatePlan
from sluice.models.rope import read_rope
from sluice.models.router import Score

THETA = 1_000_000.0
CONV = "conv"
"""Name in `layer_types` of a layer with a convolution."""
RENAMED = (
    ("operator_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("embedding_norm", "norm"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("q_layernorm", "q_norm"),
    ("k_layernorm", "k_norm"),
    ("conv.conv", "state.conv"),
    ("conv.in_proj", "state.in_proj"),
    ("conv.out_proj", "state.out_proj"),
    ("feed_forward", "mlp"),
    ("w1", "gate_proj"),
    ("w3", "up_proj"),
    ("w2", "down_proj"),
)


def _has_state(config: Fields, num_layers: int) -> list[bool]:
    """Return which layers have a convolution."""
    attending = config.get("full_attn_idxs")
    if attending is None:
        default = [False] * num_layers
    elif isinstance(attending, list) and all(type(each) is int and 0 <= each < num_layers for each in attending):
        default = [number not in attending for number in range(num_layers)]
    else:
        raise config.error("full_attn_idxs", f"a list of layers from 0 to {num_layers - 1}")
    return read_state_layers(config, num_layers, {FULL: False, CONV: True}, default)


class LFM2(Decoder):
    """LFM2 and LFM2.5."""

    layer = PreNormLayer
    rules = WeightRules(
        renamed=(*RENAMED, ("mlp.expert_bias", "mlp.select_bias")), stacks=STACKS, convolutions=("state.conv.weight",)
    )

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, rope = checkpoint.fields, read_rope(checkpoint.fields, THETA)
        spec = read_spec(checkpoint, dtype, rope)
        has_state = _has_state(config, spec.num_layers)
        state = StateSpec(channels=spec.hidden_size, taps=config.integer("conv_L_cache", 3, minimum=2), dtype=dtype)
        bias = read_bias(config, "conv_bias")
        plan = StatePlan(kind=StateKind.SHORT_CONV, inner_size=spec.hidden_size, conv_bias=bias, proj_bias=bias)
        scale = spec.head_dim**-0.5
        return DecoderConfig(
            spec=with_states(spec, state, sum(has_state), len(has_state) - sum(has_state), config),
            layers=tuple(
                LayerPlan(scale, state=plan) if is_state else LayerPlan(scale, None, rope) for is_state in has_state
            ),
            inner_size=cls.inner_size(config),
            activation="silu",
            norm_eps=config.number("norm_eps", 1e-5),
            tied=config.flag("tie_word_embeddings", config.flag("tie_embedding", True)),
            qk_norm=QKNorm.HEAD,
        )

    @classmethod
    def inner_size(cls, config: Fields) -> int:
        """Return the inner size of the MLP, which a config gives before it is reduced and rounded."""
        size = config.integer("block_ff_dim", config.integer("intermediate_size", 12_288))
        if not config.flag("block_auto_adjust_ff_dim", True):
            return size
        size, multiple = int(2 * size / 3), config.integer("block_multiple_of", 256)
        size = int(config.number("block_ffn_dim_multiplier", 1.0) * size)
        return -(-size // multiple) * multiple


class LFM2MoE(LFM2):
    """LFM2 with a mixture of experts in all but the first layers."""

    reads = ("num_experts", "num_local_experts")

    @classmethod
    def inner_size(cls, config: Fields) -> int:
        return config.integer("intermediate_size", 7168)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, read = checkpoint.fields, super().read(checkpoint, dtype)
        router = read_router(
            config,
            score=Score.SIGMOID,
            has_select_bias=config.flag("use_expert_bias", True),
            renorm_eps=1e-6 if config.flag("norm_topk_prob", True) else None,
            scale=config.number("routed_scaling_factor", 1.0),
        )
        plan = ExpertsPlan(
            router=router, inner_size=config.integer("moe_intermediate_size"), activation=read.activation
        )
        dense = config.integer("num_dense_layers", 2, minimum=0)
        return with_experts(read, [None if number < dense else plan for number in range(read.spec.num_layers)])
