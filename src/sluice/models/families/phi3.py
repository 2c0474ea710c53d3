"""Phi-3 and Phi-4-mini: a Llama whose q, k and v, and gate and up, are stored as one matrix each."""

from __future__ import annotations

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import CheckpointConfig, Fields
from sluice.models.config_fields import PARTIAL, decoder_config, read_rotary_dim, read_spec
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan
from sluice.models.rope import read_rope, rope_section

LONG = ("su", "yarn")
"""Older names of the rotation that is "longrope" today."""


def _renamed(config: Fields) -> Fields:
    """Return a config in which the rotation has its name of today."""
    given = rope_section(config)
    if given.text("rope_type", given.text("type", "default")) not in LONG:
        return config
    values = {**{name: given.get(name) for name in given}, "rope_type": "longrope"}
    values.pop("type", None)
    return config.replaced({"rope_parameters": values, "rope_scaling": None}, "longrope")


class Phi3(Decoder):
    """Phi-3 and Phi-4-mini."""

    layer = PreNormLayer
    rules = WeightRules()
    reads = (PARTIAL,)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = _renamed(checkpoint.fields)
        rope = read_rope(config, also=(PARTIAL,))
        spec = read_spec(checkpoint, dtype, rope)
        window = None if config.get("sliding_window") is None else config.integer("sliding_window")
        return decoder_config(
            config,
            spec,
            [LayerPlan(spec.head_dim**-0.5, window, rope)] * spec.num_layers,
            norm_eps=1e-5,
            is_fused=True,
            rotary_dim=read_rotary_dim(config, spec.head_dim),
        )
