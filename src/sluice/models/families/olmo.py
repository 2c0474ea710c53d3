"""OLMo 2 and 3: norms after attention and MLP only, and norms of q and k over all heads at once."""

from __future__ import annotations

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PostNormLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig
from sluice.models.config_fields import decoder_config, read_bias, read_kinds, read_spec, windows_of
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.rope import read_rope, read_ropes

THETA = 500_000.0
PERIOD = 4
"""Layers of which the last has full attention, in OLMo 3."""
WINDOW = 4096


class Olmo2(Decoder):
    """OLMo 2."""

    layer = PostNormLayer
    rules = WeightRules()

    @classmethod
    def plans(cls, checkpoint: CheckpointConfig, num_layers: int, scale: float) -> list[LayerPlan]:
        """Read what differs between the layers."""
        return [LayerPlan(scale, None, read_rope(checkpoint.fields))] * num_layers

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, num_layers = checkpoint.fields, checkpoint.fields.integer("num_hidden_layers")
        plans = cls.plans(checkpoint, num_layers, 1.0)
        rope = next(plan.rope for plan in reversed(plans) if plan.rope is not None)
        spec = read_spec(checkpoint, dtype, rope)
        bias = read_bias(config, "attention_bias")
        return decoder_config(
            config,
            spec,
            cls.plans(checkpoint, num_layers, spec.head_dim**-0.5),
            norm_eps=1e-5,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm.ROW,
        )


class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a window, and a rotation that is never scaled."""

    @classmethod
    def plans(cls, checkpoint: CheckpointConfig, num_layers: int, scale: float) -> list[LayerPlan]:
        config = checkpoint.fields
        ropes = read_ropes(config, (THETA, THETA), "rope_theta")
        kinds = read_kinds(config, num_layers, [SLIDING if (n + 1) % PERIOD else FULL for n in range(num_layers)])
        windows = windows_of(config, kinds, WINDOW)
        return [LayerPlan(scale, window, ropes[kind]) for kind, window in zip(kinds, windows, strict=True)]
