"""Mixtral: a Mistral with a mixture of experts in each layer."""

from __future__ import annotations

import torch

from sluice.models.base import STACKS, WeightRules
from sluice.models.checkpoint import CheckpointConfig, Fields
from sluice.models.config_fields import read_router, with_experts
from sluice.models.families.llama import Mistral
from sluice.models.plan import DecoderConfig, ExpertsPlan


class Mixtral(Mistral):
    """Mixtral."""

    rules = WeightRules(
        renamed=(("block_sparse_moe", "mlp"), ("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")),
        stacks=STACKS,
    )
    reads = ("num_experts", "num_local_experts")

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        return super().windows(config.with_defaults({"sliding_window": None}), num_layers)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        read = super().read(checkpoint.with_defaults({"rms_norm_eps": 1e-5}), dtype)
        router = read_router(checkpoint.fields, renorm_eps=0.0)
        plan = ExpertsPlan(router=router, inner_size=read.inner_size, activation=read.activation)
        return with_experts(read, [plan] * read.spec.num_layers)
