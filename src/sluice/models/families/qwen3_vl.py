"""Qwen3-VL's text model: a Qwen3. In a text, the three positions that its rotation has of a token are equal."""

from __future__ import annotations

import torch

from sluice.models.checkpoint import CheckpointConfig
from sluice.models.config_fields import decoder_config, read_bias, read_spec
from sluice.models.families.llama import QWEN3_HEAD_DIM, Qwen3
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.rope import read_rope

THETA = 500_000.0
GRIDS = ("mrope_section", "mrope_interleaved")
"""Parameters of the rotation that have no effect on texts."""


class Qwen3VL(Qwen3):
    """Qwen3-VL's text model."""

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = checkpoint.fields
        rope = read_rope(config, THETA, GRIDS)
        spec = read_spec(checkpoint, dtype, rope, head_dim=QWEN3_HEAD_DIM)
        bias = read_bias(config, "attention_bias")
        return decoder_config(
            config,
            spec,
            [LayerPlan(spec.head_dim**-0.5, None, rope)] * spec.num_layers,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm.HEAD,
        )
