"""Granite 3 with a mixture of experts in each layer, and perhaps an MLP beside it that every token passes."""

from __future__ import annotations

import torch

from sluice.models.base import DOWN, GATE_UP, STACKS, Stack, WeightRules
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.config_fields import read_router, with_experts
from sluice.models.families.granite import Granite
from sluice.models.plan import DecoderConfig, ExpertsPlan


class GraniteMoE(Granite):
    """Granite 3 with experts."""

    rules = WeightRules(
        renamed=(
            ("block_sparse_moe", "mlp"),
            ("router.layer", "gate"),
            ("router", "gate"),
            ("shared_mlp.output_linear", "mlp.shared_mlp.down_proj"),
        ),
        stacks=(
            *STACKS,
            Stack("mlp.input_linear.weight", GATE_UP),
            Stack("mlp.output_linear.weight", DOWN),
            Stack("shared_mlp.input_linear.weight", GATE_UP, into="mlp.shared_mlp", is_of_experts=False),
        ),
    )
    reads = ("num_local_experts",)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, read = checkpoint.fields, super().read(checkpoint, dtype)
        plan = ExpertsPlan(
            router=read_router(config, chooses_first=True),
            inner_size=read.inner_size,
            activation=read.activation,
            shared_size=config.integer("shared_intermediate_size", 0, minimum=0),
        )
        return with_experts(read, [plan] * read.spec.num_layers)
