"""What is special in the GGUF files of families whose layers have a state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sluice.models.checkpoint import FULL
from sluice.models.formats.gguf_fields import DRAFTING, EXPERT_COUNT, KV_HEADS, ArchitectureFields
from sluice.models.formats.gguf_names import (
    GRANITE_FACTORS,
    SHARED_SIZE,
    GGUFNames,
    Values,
    experts_of,
    granite_factors,
)

SSM = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count")
LINEAR, CONV = "linear_attention", "conv"
"""Names of layers with a state in `layer_types`."""
RECURRENT, INTERVAL = "attention.recurrent_layers", "full_attention_interval"
DENSE_LAYERS, EXPERT_SIZE = "leading_dense_block_count", "expert_feed_forward_length"
ROTATED = "rope.dimension_count"


def _kinds(fields: ArchitectureFields, of_state: str) -> list[str]:
    """Return `layer_types` of a file whose layers with a state have 0 KV heads."""
    return [FULL if heads else of_state for heads in fields.integers(KV_HEADS)]


def _lfm2(fields: ArchitectureFields, base: Values) -> Values:
    return {
        "norm_eps": base["rms_norm_eps"],
        "layer_types": _kinds(fields, CONV),
        "conv_L_cache": fields.integer("shortconv.l_cache"),
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    }


SIGMOID = 2
"""Number of a router that uses it."""


def _lfm2_moe(fields: ArchitectureFields, base: Values) -> Values:
    if fields.integer("expert_gating_func") != SIGMOID:
        raise fields.error("expert_gating_func", f"{SIGMOID}, sigmoid, for this architecture")
    return {
        **_lfm2(fields, base),
        **experts_of(fields),
        "moe_intermediate_size": fields.integer(EXPERT_SIZE),
        "num_dense_layers": fields.count(DENSE_LAYERS),
        "use_expert_bias": True,
        "norm_topk_prob": True,
    }


def _granite_hybrid(fields: ArchitectureFields, base: Values) -> Values:
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    hidden, shared = base["hidden_size"], fields.count(SHARED_SIZE)
    if inner % hidden:
        raise fields.error("ssm.inner_size", f"a multiple of the hidden size, {hidden}")
    experts = experts_of(fields) if fields.count(EXPERT_COUNT) else {"num_local_experts": 0}
    return {
        **granite_factors(fields),
        **experts,
        "shared_intermediate_size": shared or base["intermediate_size"],
        "mlp_bias": False,
        "layer_types": _kinds(fields, LINEAR),
        "position_embedding_type": "rope" if fields.flag("rope.scaling.finetuned", default=True) else "nope",
        "mamba_n_heads": heads,
        "mamba_n_groups": fields.integer("ssm.group_count"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_head": inner // heads,
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_expand": inner // hidden,
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in fields.tensors),
        "mamba_proj_bias": any(name.endswith(".ssm_in.bias") for name in fields.tensors),
    }


def _qwen35(fields: ArchitectureFields, base: Values) -> Values:
    """Return its fields. The file's value heads are in the order in which they take turns to share k heads."""
    heads, inner, interval = (fields.integer(name) for name in ("ssm.time_step_rank", "ssm.inner_size", INTERVAL))
    if inner % heads:
        raise fields.error("ssm.inner_size", f"a multiple of the value heads, {heads}")
    flags = fields.flags(RECURRENT) or [(layer + 1) % interval != 0 for layer in range(fields.layers)]
    return {
        "layer_types": [LINEAR if flag else FULL for flag in flags[: fields.layers]],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": fields.integer("ssm.group_count"),
        "linear_key_head_dim": fields.integer("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": fields.integer("ssm.conv_kernel"),
        "linear_value_heads_take_turns": True,
        "partial_rotary_factor": fields.integer(ROTATED) / base["head_dim"],
        "num_nextn_predict_layers": fields.count(DRAFTING),
    }


def _qwen3_next(fields: ArchitectureFields, base: Values) -> Values:
    return {**_qwen35_moe(fields, base), "linear_value_heads_take_turns": False, "norm_topk_prob": True}


def _qwen35_moe(fields: ArchitectureFields, base: Values) -> Values:
    return {
        **_qwen35(fields, base),
        **experts_of(fields),
        "moe_intermediate_size": fields.integer(EXPERT_SIZE),
        "shared_expert_intermediate_size": fields.integer(SHARED_SIZE),
    }


def _nemotron_h(fields: ArchitectureFields, base: Values) -> Values:
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if inner % heads:
        raise fields.error("ssm.inner_size", f"a multiple of the heads, {heads}")
    is_moe = fields.count(EXPERT_COUNT) > 0
    sizes = zip(fields.integers(KV_HEADS), fields.integers("feed_forward_length"), strict=True)
    kinds = [FULL if kv else ("moe" if is_moe else "mlp") if inner else LINEAR for kv, inner in sizes]
    experts: Values = {}
    if is_moe:
        experts = {
            "n_routed_experts": fields.integer(EXPERT_COUNT),
            "num_experts_per_tok": fields.integer("expert_used_count"),
            "n_shared_experts": fields.integer("expert_shared_count", 1),
            "moe_intermediate_size": fields.integer(EXPERT_SIZE),
            "moe_shared_expert_intermediate_size": fields.integer(SHARED_SIZE),
            "norm_topk_prob": fields.flag("expert_weights_norm", default=False),
            "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        }
    return {
        **experts,
        "layers_block_type": kinds[: fields.layers],
        "layer_norm_epsilon": base["rms_norm_eps"],
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": fields.integer("ssm.group_count"),
        "ssm_state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in fields.tensors),
        "use_bias": any(name.endswith(".ssm_in.bias") for name in fields.tensors),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in fields.tensors),
        "attention_bias": any(name.endswith(".attn_q.bias") for name in fields.tensors),
    }


SHORT_CONV = MappingProxyType(
    {
        "norm": "token_embd_norm",
        "state.conv": "shortconv.conv",
        "state.in_proj": "shortconv.in_proj",
        "state.out_proj": "shortconv.out_proj",
        "mlp.select_bias": "exp_probs_b.bias",
    }
)
RECURRENCE = MappingProxyType(
    {
        "state.conv": "ssm_conv1d",
        "state.decay_rate": "ssm_a",
        "state.dt_bias": "ssm_dt.bias",
        "state.output_norm": "ssm_norm",
        "state.out_proj": "ssm_out",
    }
)
MAMBA2 = MappingProxyType({**RECURRENCE, "state.in_proj": "ssm_in", "state.skip": "ssm_d"})
NEMOTRON = GGUFNames(
    MappingProxyType({**MAMBA2, "mlp.select_bias": "exp_probs_b.bias"}),
    (
        *(*SSM, DRAFTING, "attention.layer_norm_epsilon", ROTATED, EXPERT_COUNT, EXPERT_SIZE, SHARED_SIZE),
        *("expert_shared_count", "expert_weights_norm", "expert_weights_scale"),
    ),
    _nemotron_h,
    has_states=True,
    in_layers=MappingProxyType({"norm": "attn_norm"}),
)
GATED_DELTA = MappingProxyType(
    {
        **RECURRENCE,
        "state.in_proj_qkv": "attn_qkv",
        "state.in_proj_z": "attn_gate",
        "state.in_proj_b": "ssm_beta",
        "state.in_proj_a": "ssm_alpha",
        "post_attention_layernorm": "post_attention_norm",
        "mlp.shared_gate": "ffn_gate_inp_shexp",
    }
)
QWEN3_NEXT = MappingProxyType({**GATED_DELTA, "state.in_proj_b": "ssm_ba", "state.in_proj_a": "ssm_ba"})
QWEN35_READS = (*SSM, RECURRENT, INTERVAL, DRAFTING, ROTATED, "rope.dimension_sections")
STATE_NAMES: Mapping[str, GGUFNames] = {
    "lfm2": GGUFNames(SHORT_CONV, ("shortconv.l_cache",), _lfm2, has_states=True),
    "lfm2moe": GGUFNames(
        SHORT_CONV,
        ("shortconv.l_cache", EXPERT_COUNT, EXPERT_SIZE, DENSE_LAYERS, "expert_gating_func"),
        _lfm2_moe,
        has_states=True,
    ),
    "granitehybrid": GGUFNames(
        MAMBA2,
        (*SSM, *GRANITE_FACTORS.values(), EXPERT_COUNT, SHARED_SIZE, EXPERT_SIZE),
        _granite_hybrid,
        has_states=True,
        is_permuted=True,
    ),
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": NEMOTRON,
    "qwen35": GGUFNames(GATED_DELTA, QWEN35_READS, _qwen35, has_states=True, has_gates=True),
    "qwen3next": GGUFNames(
        QWEN3_NEXT,
        (*QWEN35_READS, EXPERT_COUNT, EXPERT_SIZE, SHARED_SIZE),
        _qwen3_next,
        has_states=True,
        has_gates=True,
        has_rates_by_head=True,
    ),
    "qwen35moe": GGUFNames(
        GATED_DELTA,
        (*QWEN35_READS, EXPERT_COUNT, EXPERT_SIZE, SHARED_SIZE),
        _qwen35_moe,
        has_states=True,
        has_gates=True,
    ),
}
"""`general.architecture` -> what is special."""
