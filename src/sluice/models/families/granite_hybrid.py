"""Granite 4: Mamba-2 in most layers, attention in the others, and experts beside an MLP, or that MLP alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from sluice.attention.states import StateSpec
from sluice.models.base import GATE_UP, Stack, WeightRules
from sluice.models.checkpoint import FULL, CheckpointConfig, Fields
from sluice.models.config_fields import read_router, read_state_layers, read_time_limit, with_experts, with_states
from sluice.models.families.granite import Granite
from sluice.models.families.granite_moe import GraniteMoE
from sluice.models.plan import DecoderConfig, ExpertsPlan, StateKind, StatePlan
from sluice.parallel.member import ALONE, Member

HAS_STATE = {"mamba": True, "linear_attention": True, "attention": False, FULL: False}
"""Names in `layer_types`, older ones among them."""
MAMBA = (
    ("mamba.conv1d", "state.conv"),
    ("mamba.A_log", "state.decay_rate"),
    ("mamba.D", "state.skip"),
    ("mamba.norm", "state.output_norm"),
    ("mamba", "state"),
)
OF_EXPERTS = WeightRules(
    renamed=(*MAMBA, *GraniteMoE.rules.renamed),
    stacks=GraniteMoE.rules.stacks,
    negative_exp=("state.decay_rate",),
    convolutions=("state.conv.weight",),
)
DENSE = replace(
    OF_EXPERTS,
    renamed=(*MAMBA, ("shared_mlp.output_linear", "mlp.down_proj")),
    stacks=(Stack("shared_mlp.input_linear.weight", GATE_UP, into="mlp", is_of_experts=False),),
)


def _read_state(config: Fields, hidden_size: int, dtype: torch.dtype) -> StateSpec:
    """Read the sizes of a layer's state."""
    heads, inner = config.integer("mamba_n_heads", 128), config.integer("mamba_expand", 2) * hidden_size
    groups, key_dim = config.integer("mamba_n_groups", 1), config.integer("mamba_d_state", 256)
    if inner % heads or heads % groups:
        raise config.error("mamba_n_heads", f"a divisor of {inner} and a multiple of mamba_n_groups = {groups}")
    if config.get("mamba_d_head") not in (None, "auto", inner // heads):
        raise config.error("mamba_d_head", f"{inner // heads}, so that the heads have {inner} elements")
    return StateSpec(
        channels=inner + 2 * groups * key_dim,
        taps=config.integer("mamba_d_conv", 4, minimum=2),
        dtype=dtype,
        key_heads=groups,
        key_dim=key_dim,
        value_heads=heads,
        value_dim=inner // heads,
    )


class GraniteHybrid(Granite):
    """Granite 4."""

    rules = OF_EXPERTS
    reads = ("num_local_experts",)

    def __init__(self, config: DecoderConfig, member: Member = ALONE) -> None:
        super().__init__(config, member)
        self.rules = DENSE if config.spec.experts is None else OF_EXPERTS

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, read = checkpoint.fields, super().read(checkpoint, dtype)
        spec = read.spec
        if read.activation not in ("silu", "swish"):
            raise config.error("hidden_act", "silu for this architecture")
        has_state = read_state_layers(config, spec.num_layers, HAS_STATE, [True] * spec.num_layers)
        state = _read_state(config, spec.hidden_size, dtype)
        plan = StatePlan(
            kind=StateKind.MAMBA2,
            inner_size=state.value_heads * state.value_dim,
            groups=state.key_heads,
            conv_bias=config.flag("mamba_conv_bias", True),
            proj_bias=config.flag("mamba_proj_bias", False),
            norm_eps=read.norm_eps,
            time_step_limit=read_time_limit(config),
        )
        kind = config.text("position_embedding_type", "nope")
        if kind not in ("nope", "rope"):
            raise config.error("position_embedding_type", "rope, nope or null")
        layers = tuple(
            replace(
                layer, rope=layer.rope if kind == "rope" and not is_state else None, state=plan if is_state else None
            )
            for layer, is_state in zip(read.layers, has_state, strict=True)
        )
        read = replace(
            read, spec=with_states(spec, state, sum(has_state), len(has_state) - sum(has_state), config), layers=layers
        )
        shared = config.integer("shared_intermediate_size", 1024)
        if config.integer("num_local_experts", 8, minimum=0) == 0:
            return replace(read, inner_size=shared)
        experts = ExpertsPlan(
            router=read_router(config, chooses_first=True),
            inner_size=read.inner_size,
            activation=read.activation,
            shared_size=shared,
        )
        return with_experts(read, [experts] * spec.num_layers)
