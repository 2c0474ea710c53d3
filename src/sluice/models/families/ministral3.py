"""Ministral 3: a Mistral whose queries grow with the position."""

from __future__ import annotations

import torch

from sluice.models.checkpoint import CheckpointConfig
from sluice.models.config_fields import decoder_config, read_spec
from sluice.models.families.llama import Llama
from sluice.models.plan import DecoderConfig, LayerPlan, QueryGrowth
from sluice.models.rope import read_rope, rope_section

BETA = "llama_4_scaling_beta"
HEAD_DIM = 128
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    BETA: 0.1,
}
"""The rotation of a config that has none."""


class Ministral3(Llama):
    """Ministral 3."""

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = checkpoint.fields
        if config.section("rope_parameters") is None and config.section("rope_scaling") is None:
            config = config.replaced({"rope_parameters": ROPE}, "the default rotation")
        rope, section = read_rope(config, also=(BETA, "max_position_embeddings")), rope_section(config)
        spec = read_spec(checkpoint, dtype, rope, head_dim=HEAD_DIM)
        window = None if config.get("sliding_window") is None else config.integer("sliding_window")
        growth = None
        if section.get(BETA):
            growth = QueryGrowth(section.number(BETA), section.integer("original_max_position_embeddings"))
        return decoder_config(
            config,
            spec,
            [LayerPlan(spec.head_dim**-0.5, window, rope)] * spec.num_layers,
            norm_eps=1e-5,
            query_growth=growth,
        )
