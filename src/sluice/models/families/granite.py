"""Granite 3: a Llama with factors of embeddings, scores, residuals and logits."""

from __future__ import annotations

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.config_fields import decoder_config, read_bias, read_spec
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan
from sluice.models.rope import read_rope

FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
"""Fields of a config, 1 if they are not there."""


class Granite(Decoder):
    """Granite 3."""

    layer = PreNormLayer
    rules = WeightRules()

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, rope = checkpoint.fields, read_rope(checkpoint.fields)
        spec = read_spec(checkpoint, dtype, rope)
        bias = read_bias(config, "attention_bias")
        embedding, scale, residual, divisor = (config.number(name, 1.0) for name in FACTORS)
        return decoder_config(
            config,
            spec,
            [LayerPlan(scale, None, rope)] * spec.num_layers,
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=read_bias(config, "mlp_bias"),
            embedding_scale=embedding,
            residual_scale=residual,
            logit_divisor=divisor,
        )
