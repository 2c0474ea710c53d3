"""Qwen3-MoE: a Qwen3 with a mixture of experts in most layers."""

from __future__ import annotations

import torch

from sluice.models.base import STACKS, WeightRules
from sluice.models.checkpoint import SLIDING, CheckpointConfig, Fields
from sluice.models.config_fields import read_kinds, read_router, windows_of, with_experts
from sluice.models.families.llama import Qwen3, all_full
from sluice.models.plan import DecoderConfig, ExpertsPlan


def dense_layers(config: Fields, num_layers: int) -> set[int]:
    """Return the layers that have an MLP."""
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(each, int) and 0 <= each < num_layers for each in listed):
        raise config.error("mlp_only_layers", f"a list of layers from 0 to {num_layers - 1}")
    step = config.integer("decoder_sparse_step", 1)
    return {number for number in range(num_layers) if number in listed or (number + 1) % step}


class Qwen3MoE(Qwen3):
    """Qwen3-MoE."""

    rules = WeightRules(stacks=STACKS)
    reads = ("num_experts", "num_local_experts")
    head_dim = None

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        if not config.flag("use_sliding_window", False) or config.get("sliding_window") is None:
            return all_full(config, num_layers)
        return windows_of(config, read_kinds(config, num_layers, [SLIDING] * num_layers))

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, read = checkpoint.fields, super().read(checkpoint, dtype)
        plan = ExpertsPlan(
            router=read_router(config, renorm_eps=0.0 if config.flag("norm_topk_prob", False) else None),
            inner_size=config.integer("moe_intermediate_size"),
            activation=read.activation,
        )
        dense = dense_layers(config, read.spec.num_layers)
        return with_experts(read, [None if number in dense else plan for number in range(read.spec.num_layers)])
