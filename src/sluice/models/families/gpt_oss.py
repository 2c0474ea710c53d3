"""gpt-oss: attention sinks, every other layer with a window, and experts with biases and a clamped activation."""

from __future__ import annotations

import torch

from sluice.models.base import DOWN, GATE_UP, Stack, WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig
from sluice.models.config_fields import (
    decoder_config,
    read_bias,
    read_kinds,
    read_router,
    read_spec,
    windows_of,
    with_experts,
)
from sluice.models.decoder import Decoder
from sluice.models.experts import ClampedSwiGLU
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan
from sluice.models.rope import read_rope

DEFAULTS = {
    "head_dim": 64,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
}
"""Fields that a config may leave out."""
THETA = 150_000.0


class GptOss(Decoder):
    """gpt-oss."""

    layer = PreNormLayer
    rules = WeightRules(
        renamed=(("mlp.router", "mlp.gate"),),
        stacks=(
            Stack("mlp.experts.gate_up_proj", GATE_UP, transposed=True, interleaved=True),
            Stack("mlp.experts.gate_up_proj_bias", GATE_UP, leaf="bias", interleaved=True),
            Stack("mlp.experts.down_proj", DOWN, transposed=True),
            Stack("mlp.experts.down_proj_bias", DOWN, leaf="bias"),
        ),
    )
    reads = ("num_experts", "num_local_experts")

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        checkpoint = checkpoint.with_defaults(DEFAULTS)
        config = checkpoint.fields
        rope = read_rope(config, THETA)
        spec = read_spec(checkpoint, dtype, rope)
        kinds = read_kinds(config, spec.num_layers, [FULL if n % 2 else SLIDING for n in range(spec.num_layers)])
        bias = read_bias(config, "attention_bias")
        scale = spec.head_dim**-0.5
        read = decoder_config(
            config,
            spec,
            [LayerPlan(scale, window, rope) for window in windows_of(config, kinds)],
            qkv_bias=bias,
            output_bias=bias,
            has_sinks=True,
        )
        plan = ExpertsPlan(
            router=read_router(config, chooses_first=True, has_bias=True),
            inner_size=read.inner_size,
            activation=ClampedSwiGLU(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)),
            has_bias=True,
        )
        return with_experts(read, [plan] * spec.num_layers)
