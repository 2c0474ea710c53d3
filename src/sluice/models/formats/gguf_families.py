"""What is special in the GGUF files of each family: names of weights, and settings, read as fields of a `config.json`.

This is beside the families and not in them, since the front end reads settings without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from sluice.models.checkpoint import FULL, SLIDING
from sluice.models.formats.gguf_fields import EXPERT_COUNT, LOCAL_SIZE, ArchitectureFields
from sluice.models.formats.gguf_names import (
    GRANITE_FACTORS,
    SHARED_SIZE,
    GGUFNames,
    Values,
    experts_of,
    granite_factors,
)
from sluice.models.formats.gguf_states import STATE_NAMES

SCALING = "rope.scaling."
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
LOCAL_THETA = "rope.freq_base_swa"


LARGEST_GEMMA = MappingProxyType({"gemma2": 46, "gemma3": 62})
"""Layers of the largest model of a generation, whose scale is not that of its heads. No field says it."""
GEMMA_MODULES = MappingProxyType(
    {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
GEMMA_READS = (WINDOW, PATTERN, "final_logit_softcapping")


def _gemma(fields: ArchitectureFields, base: Values) -> Values:
    is_largest = base["num_hidden_layers"] == LARGEST_GEMMA.get(fields.name)
    share = base["hidden_size"] // base["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": share if is_largest else base["head_dim"],
        "sliding_window": fields.integer(WINDOW),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 0.0) or None,
    }


def _gemma2(fields: ArchitectureFields, base: Values) -> Values:
    cap = fields.number("attn_logit_softcapping", 50.0)
    return {**_gemma(fields, base), "layer_types": fields.kinds(2), "attn_logit_softcapping": cap}


def _gemma3(fields: ArchitectureFields, base: Values) -> Values:
    local = {"rope_type": "default", "rope_theta": fields.number(LOCAL_THETA, 10_000.0)}
    ropes = {FULL: base["rope_parameters"], SLIDING: local}
    return {**_gemma(fields, base), "layer_types": fields.kinds(6), "rope_parameters": ropes}


GEMMA4_SIZES = ("feed_forward_length", "attention.head_count_kv")
GEMMA4_READS = (
    *(*GEMMA_READS, LOCAL_THETA, LOCAL_SIZE, "attention.value_length", "attention.value_length_swa"),
    *("rope.dimension_count", "rope.dimension_count_swa", "attention.shared_kv_layers"),
    *("embedding_length_per_layer_input", "expert_feed_forward_length", EXPERT_COUNT),
)
GEMMA4_MODULES = MappingProxyType(
    {
        **GEMMA_MODULES,
        "layer_scalar": "layer_output_scale",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "moe.pre_norm": "pre_ffw_norm_2",
        "moe.gate": "ffn_gate_inp",
        "moe.router_norm": "ffn_gate_inp.scale",
        "moe.expert_scale": "ffn_down_exps.scale",
    }
)


def _gemma4(fields: ArchitectureFields, base: Values) -> Values:
    kinds, shared = fields.kinds(6), fields.count("attention.shared_kv_layers")
    for name, size in (
        ("attention.value_length", fields.full_head_dim),
        ("rope.dimension_count", fields.full_head_dim),
        ("attention.value_length_swa", fields.head_dim),
        ("rope.dimension_count_swa", fields.head_dim),
    ):
        if fields.integer(name, size) != size:
            raise fields.error(name, f"the head size, {size}")
    own = len(kinds) - shared
    heads = fields.integers("attention.head_count_kv")
    local, full = (
        sorted({h for h, kind in zip(heads, kinds, strict=True) if kind == each}) for each in (SLIDING, FULL)
    )
    if len(local) != 1 or len(full) != 1:
        raise fields.error("attention.head_count_kv", "one number for layers with a window, and one for the others")
    inner = fields.integers("feed_forward_length")
    wide = 2 if inner[-1] != inner[0] else 1
    if inner != [inner[0]] * own + [wide * inner[0]] * shared:
        raise fields.error("feed_forward_length", "a number, or twice as many for layers that share keys and values")
    has_values = any(f"blk.{n}.attn_v.weight" in fields.tensors for n in range(own) if kinds[n] == FULL)
    experts: Values = {}
    if fields.count(EXPERT_COUNT):
        experts = {
            "enable_moe_block": True,
            "num_experts": fields.integer(EXPERT_COUNT),
            "top_k_experts": fields.integer("expert_used_count"),
            "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        }
    return {
        **_gemma3(fields, base),
        **experts,
        "intermediate_size": inner[0],
        "use_double_wide_mlp": wide == 2,
        "num_key_value_heads": local[0],
        "global_head_dim": fields.full_head_dim,
        "per_layer_config": {str(n): {"num_key_value_heads": full[0]} for n, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": not has_values,
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": fields.count("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": base["vocab_size"],
    }


BETA = "attention.temperature_scale"
YARN = ("yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier")


def _mistral3(fields: ArchitectureFields, base: Values) -> Values:
    rope = dict(base["rope_parameters"])
    beta = fields.number(BETA, 0.0)
    if rope["rope_type"] == "yarn":
        rope |= {"beta_fast": fields.number(f"{SCALING}yarn_beta_fast", 32.0)}
        rope |= {"beta_slow": fields.number(f"{SCALING}yarn_beta_slow", 1.0)}
        growth = 0.1 * math.log(max(rope["factor"], 1.0))
        stretch = (1 + growth) / (1 + growth * fields.number(f"{SCALING}yarn_log_multiplier", 0.0))
        rope["attention_factor"] = stretch * fields.number(f"{SCALING}attn_factor", 1.0)
    if beta:
        original = fields.integer(f"{SCALING}original_context_length", base["max_position_embeddings"])
        rope |= {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    return {"rope_parameters": rope}


def _smollm3(fields: ArchitectureFields, base: Values) -> Values:
    return {"no_rope_layer_interval": 4}


def _granite(fields: ArchitectureFields, base: Values) -> Values:
    return granite_factors(fields)


def _olmo2(fields: ArchitectureFields, base: Values) -> Values:
    """Return what the files of both generations say; those of OLMo 3 have windows."""
    if not fields.number(WINDOW, 0.0):
        return {}
    theta = fields.number(LOCAL_THETA, base["rope_parameters"]["rope_theta"])
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": fields.integer(WINDOW),
        "layer_types": fields.kinds(4),
        "rope_parameters": {FULL: base["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": theta}},
    }


def _phi3(fields: ArchitectureFields, base: Values) -> Values:
    rotated = fields.integer("rope.dimension_count", base["head_dim"])
    window = fields.integer(WINDOW) if fields.number(WINDOW, 0.0) else None
    return {"partial_rotary_factor": rotated / base["head_dim"], "sliding_window": window}


EXPERTS_READ = (EXPERT_COUNT, "expert_feed_forward_length")


def _qwen3_moe(fields: ArchitectureFields, base: Values) -> Values:
    """Return its fields. llama.cpp always divides weights by their sum."""
    experts = experts_of(fields)
    inner = base["intermediate_size"] // experts["num_experts_per_tok"]
    of_experts = fields.integer("expert_feed_forward_length", max(1, inner))
    return {**experts, "moe_intermediate_size": of_experts, "norm_topk_prob": True}


def _granite_moe(fields: ArchitectureFields, base: Values) -> Values:
    shared = fields.count(SHARED_SIZE)
    architecture = "GraniteMoeSharedForCausalLM" if shared else "GraniteMoeForCausalLM"
    own = {"architectures": [architecture], "shared_intermediate_size": shared}
    return {**_granite(fields, base), **experts_of(fields), **own, "mlp_bias": False}


def _gpt_oss(fields: ArchitectureFields, base: Values) -> Values:
    """Return its fields. The range of frequencies that are interpolated is not rounded, as its authors compute it."""
    inner, rope = fields.integer("expert_feed_forward_length", base["intermediate_size"]), base["rope_parameters"]
    return {
        **experts_of(fields),
        "intermediate_size": inner,
        "sliding_window": fields.integer(WINDOW),
        "layer_types": fields.kinds(2),
        "rope_parameters": {**rope, "truncate": False} if rope["rope_type"] == "yarn" else rope,
    }


def _llama(fields: ArchitectureFields, base: Values) -> Values:
    if not fields.count(EXPERT_COUNT):
        return {}
    return {**experts_of(fields), "architectures": ["MixtralForCausalLM"], "attention_bias": False, "mlp_bias": False}


OLMO_MODULES = MappingProxyType(
    {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
)
NAMES: Mapping[str, GGUFNames] = {
    "llama": GGUFNames(reads=(EXPERT_COUNT,), config=_llama, is_permuted=True),
    "qwen2": GGUFNames(),
    "qwen3": GGUFNames(),
    "qwen3moe": GGUFNames(reads=EXPERTS_READ, config=_qwen3_moe),
    "gpt-oss": GGUFNames(
        MappingProxyType({"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks"}),
        (WINDOW, PATTERN, *EXPERTS_READ),
        _gpt_oss,
    ),
    "qwen3vl": GGUFNames(reads=("rope.dimension_sections", "n_deepstack_layers")),
    "gemma2": GGUFNames(GEMMA_MODULES, (*GEMMA_READS, "attn_logit_softcapping"), _gemma2),
    "gemma3": GGUFNames(GEMMA_MODULES, (*GEMMA_READS, LOCAL_THETA), _gemma3),
    "gemma4": GGUFNames(GEMMA4_MODULES, GEMMA4_READS, _gemma4, GEMMA4_SIZES),
    "mistral3": GGUFNames(reads=(BETA, *(SCALING + name for name in YARN)), config=_mistral3, is_permuted=True),
    "smollm3": GGUFNames(config=_smollm3, is_permuted=True),
    "granite": GGUFNames(reads=tuple(GRANITE_FACTORS.values()), config=_granite, is_permuted=True),
    "granitemoe": GGUFNames(
        reads=(*GRANITE_FACTORS.values(), EXPERT_COUNT, SHARED_SIZE), config=_granite_moe, is_permuted=True
    ),
    "phi3": GGUFNames(MappingProxyType({"mlp.gate_up_proj": "ffn_up"}), (WINDOW, "rope.dimension_count"), _phi3),
    "olmo2": GGUFNames(OLMO_MODULES, (WINDOW, PATTERN, LOCAL_THETA), _olmo2),
    **STATE_NAMES,
}
"""`general.architecture` -> what is special."""
