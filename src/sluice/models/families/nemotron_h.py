"""Nemotron-H, Nemotron Nano 2 and 3: each layer is one of Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from sluice.attention.states import StateSpec
from sluice.models.base import DOWN, Stack, WeightRules
from sluice.models.blocks.layer import OnePartLayer
from sluice.models.checkpoint import FULL, CheckpointConfig, Fields
from sluice.models.config_fields import read_bias, read_spec, read_time_limit, with_states
from sluice.models.decoder import Decoder
from sluice.models.layers import read_activation
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan, StateKind, StatePlan
from sluice.models.rope import DEFAULT_THETA, Rope
from sluice.models.router import Router, Score
from sluice.models.spec import ExpertSizes

MAMBA, MLP, MOE = "linear_attention", "mlp", "moe"
PATTERN = {"M": MAMBA, "*": FULL, "-": MLP, "E": MOE}
OLDER = {"mamba": MAMBA, "attention": FULL}
"""Names of kinds of layers that older configs have."""
RENAMED = (
    ("model.layers", "layers"),
    ("model.embeddings", "embed_tokens"),
    ("embeddings", "embed_tokens"),
    ("mixer.norm", "state.output_norm"),
    ("mixer.in_proj", "state.in_proj"),
    ("mixer.out_proj", "state.out_proj"),
    ("mixer.conv1d", "state.conv"),
    ("mixer.A_log", "state.decay_rate"),
    ("mixer.D", "state.skip"),
    ("mixer.dt_bias", "state.dt_bias"),
    *((f"mixer.{name}", f"self_attn.{name}") for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("mixer.gate.e_score_correction_bias", "mlp.select_bias"),
    ("mixer.shared_experts", "mlp.shared_mlp"),
    ("mixer", "mlp"),
    ("model.norm_f", "norm"),
    ("norm_f", "norm"),
)


def read_blocks(config: Fields) -> list[str]:
    """Return the kind of each layer."""
    given = next((config.get(name) for name in ("layers_block_type", "layer_types") if config.get(name)), None)
    if given is None:
        pattern = config.text("hybrid_override_pattern")
        given = [PATTERN.get(each, each) for each in pattern]
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise config.error("layers_block_type", f"a list of {', '.join(PATTERN.values())}")
    kinds = [OLDER.get(str(kind), str(kind)) for kind in given]
    unknown = next((kind for kind in kinds if kind not in PATTERN.values()), None)
    if unknown is not None:
        raise config.error("layers_block_type", f"a list of {', '.join(PATTERN.values())}, without {unknown!r}")
    return kinds


def _read_state(config: Fields, dtype: torch.dtype) -> StateSpec:
    heads, value_dim = config.integer("mamba_num_heads", 128), config.integer("mamba_head_dim", 64)
    groups, key_dim = config.integer("n_groups", 8), config.integer("ssm_state_size", 128)
    if heads % groups:
        raise config.error("mamba_num_heads", f"a multiple of n_groups = {groups}")
    return StateSpec(
        channels=heads * value_dim + 2 * groups * key_dim,
        taps=config.integer("conv_kernel", 4, minimum=2),
        dtype=dtype,
        key_heads=groups,
        key_dim=key_dim,
        value_heads=heads,
        value_dim=value_dim,
    )


def _read_experts(config: Fields, activation: str) -> ExpertsPlan:
    """Read the experts, which are as the MLPs are."""
    if config.get("moe_latent_size") is not None:
        raise config.error("moe_latent_size", "null: experts of another width than the model's are not supported")
    if config.integer("n_shared_experts", 1) != 1:
        raise config.error("n_shared_experts", "1")
    experts, chosen = config.integer("n_routed_experts", 8), config.integer("num_experts_per_tok", 2)
    groups = config.integer("n_group", 1)
    if chosen > experts or experts % groups:
        raise config.error("n_routed_experts", f"a multiple of n_group = {groups}, and at least {chosen}")
    router = Router(
        experts=experts,
        chosen=chosen,
        score=Score.SIGMOID,
        groups=groups,
        chosen_groups=config.integer("topk_group", 1),
        group_score=2,
        renorm_eps=1e-20 if config.flag("norm_topk_prob", True) else None,
        scale=config.number("routed_scaling_factor", 1.0),
        has_select_bias=True,
        is_wide=True,
    )
    return ExpertsPlan(
        router=router,
        inner_size=config.integer("moe_intermediate_size", 7688),
        is_gated=False,
        activation=activation,
        shared_size=config.integer("moe_shared_expert_intermediate_size", 7688),
    )


def _plans(kinds: Sequence[str], scale: float, state: StatePlan, experts: ExpertsPlan | None) -> list[LayerPlan]:
    """Return what each layer is."""
    plans = {
        MAMBA: LayerPlan(scale, state=state, has_mlp=False),
        FULL: LayerPlan(scale, has_mlp=False),
        MLP: LayerPlan(scale, has_mixer=False),
        MOE: LayerPlan(scale, has_mixer=False, has_mlp=False, experts=experts),
    }
    return [plans[kind] for kind in kinds]


class NemotronH(Decoder):
    """Nemotron-H."""

    layer = OnePartLayer
    rules = WeightRules(
        prefix="backbone.",
        renamed=RENAMED,
        stacks=(Stack("mlp.experts.up_proj", ("up_proj",)), Stack("mlp.experts.down_proj", DOWN)),
        negative_exp=("state.decay_rate",),
        convolutions=("state.conv.weight",),
    )
    reads = ("num_experts", "num_local_experts")

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        kinds = read_blocks(checkpoint.fields)
        checkpoint = checkpoint.with_defaults({"num_hidden_layers": len(kinds)})
        config = checkpoint.fields
        head_dim = config.integer("attention_head_dim", 128)
        spec = read_spec(checkpoint, dtype, Rope(DEFAULT_THETA), head_dim=head_dim)
        if spec.num_layers != len(kinds):
            raise config.error("num_hidden_layers", f"{len(kinds)}, as many as there are kinds of layers")
        if config.get("sliding_window") is not None:
            raise config.error("sliding_window", "null for this architecture")
        for name in ("attention_bias", "residual_in_fp32"):
            read_bias(config, name, fixed=False)
        if config.text("mamba_hidden_act", "silu") not in ("silu", "swish"):
            raise config.error("mamba_hidden_act", "silu")
        activation, eps = read_activation(config, "mlp_hidden_act", "relu2"), config.number("layer_norm_epsilon", 1e-5)
        state = _read_state(config, dtype)
        of_state = StatePlan(
            kind=StateKind.MAMBA2,
            inner_size=state.value_heads * state.value_dim,
            groups=state.key_heads,
            conv_bias=config.flag("use_conv_bias", True),
            proj_bias=config.flag("use_bias", False),
            norm_eps=eps,
            time_step_limit=read_time_limit(config),
        )
        experts = _read_experts(config, activation) if MOE in kinds else None
        spec = with_states(spec, state, kinds.count(MAMBA), kinds.count(FULL), config)
        if experts is not None:
            numbers = 2 * spec.hidden_size * experts.inner_size
            sizes = ExpertSizes(kinds.count(MOE), experts.router.experts, experts.router.chosen, numbers)
            spec = replace(spec, experts=sizes)
        return DecoderConfig(
            spec=spec,
            layers=tuple(_plans(kinds, spec.head_dim**-0.5, of_state, experts)),
            inner_size=config.integer("intermediate_size", 21_504),
            activation=activation,
            norm_eps=eps,
            tied=config.flag("tie_word_embeddings", False),
            mlp_bias=read_bias(config, "mlp_bias"),
            is_gated=False,
        )
