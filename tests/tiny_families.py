"""Tiny random models of native families beyond those of `tiny_models`, each with what makes it different.

Norms are not 1, biases are not 0, and each kind of layer occurs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tiny_models import VOCAB_SIZE, WINDOW, exact, made, sizes

FOUR = {"num_hidden_layers": 4}
KINDS = ["sliding_attention", "full_attention"] * 2
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
    "beta_slow": 0.5,
}
GROWING = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
DEFAULT = {"rope_type": "default", "rope_theta": 1000.0}


def tiny(name: str, config: str | None = None, **changes: Any) -> transformers.PreTrainedModel:
    """Make a model of a class of transformers in the usual sizes, with changes."""
    kind = getattr(transformers, f"{name}ForCausalLM")
    return made(kind, getattr(transformers, config or f"{name}Config")(**(sizes() | changes)))


def gemma2(head_dim: int = 12, **changes: Any) -> transformers.PreTrainedModel:
    """Soft caps on scores and logits, a scale of its own, every other layer with a window, scaled embeddings."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 7}
    return tiny("Gemma2", head_dim=head_dim, **({"sliding_window": WINDOW} | FOUR | caps | changes))


def gemma3_fields() -> dict[str, Any]:
    """What is special in a config of Gemma 3."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    full = {"rope_type": "linear", "rope_theta": 200.0, "factor": 3.0}
    return {
        "num_hidden_layers": 5,
        "head_dim": 12,
        "sliding_window": WINDOW,
        "layer_types": kinds,
        "rope_parameters": {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}},
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 1.0,  # which it does not use
    }


def gemma3(**changes: Any) -> transformers.PreTrainedModel:
    """Windows and another rotation on most layers, q and k normalised."""
    return tiny("Gemma3", "Gemma3TextConfig", **(gemma3_fields() | changes))


def smollm3(**changes: Any) -> transformers.PreTrainedModel:
    """Layers whose q and k are not rotated."""
    return tiny("SmolLM3", **({"num_hidden_layers": 5, "pad_token_id": 0, "no_rope_layers": [1, 0, 1, 1, 0]} | changes))


def phi3(**changes: Any) -> transformers.PreTrainedModel:
    """One matrix for q, k and v, and one for gate and up; a window on every layer."""
    return tiny("Phi3", **({"sliding_window": WINDOW, "pad_token_id": 0} | changes))


def phi4_mini(**changes: Any) -> transformers.PreTrainedModel:
    """Frequencies for long texts, in the first half of each head."""
    factors = {name: LONGROPE[name][:2] for name in ("short_factor", "long_factor")}
    rope = LONGROPE | factors | {"partial_rotary_factor": 0.5}
    own: dict[str, Any] = {"original_max_position_embeddings": 8, "tie_word_embeddings": True}
    return phi3(**({"sliding_window": None, "rope_parameters": rope} | own | changes))


def olmo2(**changes: Any) -> transformers.PreTrainedModel:
    """Norms behind attention and MLP; q and k normalised over all heads."""
    return tiny("Olmo2", **changes)


def olmo3(**changes: Any) -> transformers.PreTrainedModel:
    """Windows on layers whose rotation is not stretched."""
    ropes: dict[str, Any] = {"full_attention": YARN, "sliding_attention": DEFAULT}
    own: dict[str, Any] = {"layer_types": KINDS, "rope_parameters": ropes, "sliding_window": WINDOW}
    return tiny("Olmo3", **(FOUR | own | changes))


def granite(**changes: Any) -> transformers.PreTrainedModel:
    """Multipliers on embeddings, residuals, scores and logits."""
    scales: dict[str, Any] = {"embedding_multiplier": 1.5, "residual_multiplier": 0.8, "attention_multiplier": 0.3}
    return tiny("Granite", **(scales | {"logits_scaling": 0.7} | changes))


def ministral3(**changes: Any) -> transformers.PreTrainedModel:
    """Queries that grow with the position, in steps of 32 tokens."""
    return tiny("Ministral3", **({"head_dim": 12, "pad_token_id": 0, "rope_parameters": GROWING} | changes))


def gemma4(**changes: Any) -> transformers.PreTrainedModel:
    """Two sizes of heads, layers that read others' keys and values, and inputs for each layer."""
    kinds = ["sliding_attention", "full_attention"] * 3
    full = {"rope_type": "proportional", "rope_theta": 200.0, "partial_rotary_factor": 0.5}
    own: dict[str, Any] = {
        "num_hidden_layers": 6,
        "layer_types": kinds,
        "head_dim": 8,
        "global_head_dim": 16,
        "sliding_window": WINDOW,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 6,
        "rope_parameters": {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}},
    }
    model = tiny("Gemma4", "Gemma4TextConfig", **(own | changes))
    for number, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.8 + 0.1 * number)
    return model


def gemma4_31b(**changes: Any) -> transformers.PreTrainedModel:
    """Values that are keys, with other numbers of heads, and no inputs for each layer."""
    own: dict[str, Any] = {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 1.5,
    }
    return gemma4(**(own | changes))


def gemma4_26b(**changes: Any) -> transformers.PreTrainedModel:
    """Experts beside each MLP, which the residual chooses."""
    own: dict[str, Any] = {
        "enable_moe_block": True,
        "num_experts": 10,
        "top_k_experts": 3,
        "moe_intermediate_size": 20,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "num_hidden_layers": 4,
        "layer_types": KINDS,
    }
    return gemma4(**(own | changes))


EXPERTS: dict[str, Any] = {"num_experts_per_tok": 3, "num_local_experts": 10}


def qwen3_moe(**changes: Any) -> transformers.PreTrainedModel:
    """Ten experts in most layers, whose weights are not divided by their sum."""
    own = {"head_dim": 12, "moe_intermediate_size": 20, "mlp_only_layers": [2]}
    return tiny("Qwen3Moe", **(FOUR | EXPERTS | own | changes))


def mixtral(**changes: Any) -> transformers.PreTrainedModel:
    """Experts in each layer, and a window."""
    return tiny("Mixtral", **(EXPERTS | {"sliding_window": WINDOW} | changes))


def granite_moe(**changes: Any) -> transformers.PreTrainedModel:
    """Experts whose weights are made of the chosen logits alone, and factors."""
    scales: dict[str, Any] = {"embedding_multiplier": 1.5, "residual_multiplier": 0.8, "attention_multiplier": 0.3}
    return tiny("GraniteMoe", **(EXPERTS | scales | {"logits_scaling": 0.7} | changes))


def granite_moe_shared(**changes: Any) -> transformers.PreTrainedModel:
    """An MLP beside the experts that every token passes."""
    return tiny(
        "GraniteMoeShared", **(EXPERTS | {"shared_intermediate_size": 28, "residual_multiplier": 0.8} | changes)
    )


def gpt_oss(**changes: Any) -> transformers.PreTrainedModel:
    """Sinks, biases, windows on every other layer, and an activation that is clamped often."""
    rope = YARN | {"truncate": False}
    own = {"head_dim": 12, "sliding_window": WINDOW, "rope_parameters": rope, "swiglu_limit": 0.4, "swiglu_alpha": 1.5}
    return tiny("GptOss", **(FOUR | EXPERTS | own | changes))


def with_random_rates(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Give layers with a state decays from weak to strong, and time steps that differ."""
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data = torch.log(0.05 + 2 * torch.rand(parameter.shape, generator=draw))
        elif name.endswith("dt_bias"):
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=draw)
        elif name.endswith(("conv1d.weight", "conv.conv.weight")):
            parameter.data = 0.6 * torch.randn(parameter.shape, generator=draw)
    return model


def lfm2(**changes: Any) -> transformers.PreTrainedModel:
    """Short convolutions, with biases."""
    own: dict[str, Any] = {
        "num_hidden_layers": 5,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "block_multiple_of": 4,
        "block_ffn_dim_multiplier": 1.3,
        "conv_bias": True,
        "norm_eps": 1e-3,
        "pad_token_id": 0,
    }
    return with_random_rates(tiny("Lfm2", **(own | changes)))


LINEAR_KINDS = ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"]


def qwen3_5(kind: str = "Qwen3_5", config: str = "Qwen3_5TextConfig", **changes: Any) -> transformers.PreTrainedModel:
    """Gated delta nets, and attention with gates; a quarter of each head is rotated."""
    own: dict[str, Any] = {
        "num_hidden_layers": 5,
        "layer_types": LINEAR_KINDS,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [1, 1, 0]},
    }
    return with_random_rates(tiny(kind, config, **(own | changes)))


def qwen3_5_moe(**changes: Any) -> transformers.PreTrainedModel:
    """Experts in each layer, and an MLP with a gate beside them."""
    own = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
    own |= {"shared_expert_intermediate_size": 28}
    kinds = {"kind": "Qwen3_5Moe", "config": "Qwen3_5MoeTextConfig"}
    return qwen3_5(**(kinds | own | changes))


def qwen3_next(**changes: Any) -> transformers.PreTrainedModel:
    """Matrices stored by key head, and a dense layer."""
    own = {"mlp_only_layers": [1], "norm_topk_prob": False, "rope_parameters": dict(DEFAULT)}
    return qwen3_5_moe(kind="Qwen3Next", config="Qwen3NextConfig", **(own | changes))


def granite_hybrid(**changes: Any) -> transformers.PreTrainedModel:
    """Mamba-2 in most layers, experts beside an MLP, no rotation."""
    scales: dict[str, Any] = {"embedding_multiplier": 1.5, "residual_multiplier": 0.8, "attention_multiplier": 0.3}
    own: dict[str, Any] = {
        "num_hidden_layers": 5,
        "layer_types": LINEAR_KINDS,
        "shared_intermediate_size": 28,
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 10,
        "mamba_d_conv": 4,
        "mamba_expand": 3,
        "mamba_proj_bias": True,
        "mamba_chunk_size": 32,
        "time_step_limit": (0.1, 1.5),
        "pad_token_id": 0,
    }
    return with_random_rates(tiny("GraniteMoeHybrid", **(EXPERTS | scales | own | {"logits_scaling": 0.7} | changes)))


def granite_hybrid_dense(**changes: Any) -> transformers.PreTrainedModel:
    """No experts, and rotated attention."""
    own = {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
    return granite_hybrid(**(own | changes))


def lfm2_moe(**changes: Any) -> transformers.PreTrainedModel:
    """Experts in all but the first layers, chosen with a bias."""
    own: dict[str, Any] = {
        "num_hidden_layers": 5,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "norm_eps": 1e-3,
        "pad_token_id": 0,
        "num_dense_layers": 1,
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "routed_scaling_factor": 1.3,
    }
    model = with_random_rates(tiny("Lfm2Moe", **(own | changes)))
    draw = torch.Generator().manual_seed(2)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=draw))
    return model


def nemotron_h(**changes: Any) -> transformers.PreTrainedModel:
    """Layers that are one of Mamba-2, attention and an MLP."""
    kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    own: dict[str, Any] = {
        "layers_block_type": [kinds[kind] for kind in "M-M*-*"],
        "head_dim": 12,
        "mamba_num_heads": 6,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 10,
        "chunk_size": 32,
        "time_step_min": 1e-9,  # with which transformers bounds time steps of prompts, and not those of single tokens
        "mlp_bias": True,
        "pad_token_id": 0,
    }
    given = own | changes
    given["layers_block_type"] = [kinds.get(kind, kind) for kind in given["layers_block_type"]]
    model = with_random_rates(tiny("NemotronH", **given))
    draw = torch.Generator().manual_seed(2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=draw))
    return model


def nemotron_3(**changes: Any) -> transformers.PreTrainedModel:
    """Experts without gates, chosen from groups."""
    own: dict[str, Any] = {
        "layers_block_type": list("MEM*E"),
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 3,
        "topk_group": 2,
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28,
        "routed_scaling_factor": 1.3,
        "mlp_bias": False,
    }
    return nemotron_h(**(own | changes))


FAMILIES: dict[str, Callable[..., transformers.PreTrainedModel]] = {
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gemma4-31b": gemma4_31b,
    "gemma4-26b": gemma4_26b,
    "smollm3": smollm3,
    "phi3": phi3,
    "phi4-mini": phi4_mini,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "granite": granite,
    "ministral3": ministral3,
    "qwen3-moe": qwen3_moe,
    "mixtral": mixtral,
    "granite-moe": granite_moe,
    "gpt-oss": gpt_oss,
    "granite-moe-shared": granite_moe_shared,
    "lfm2": lfm2,
    "qwen3.5": qwen3_5,
    "qwen3.5-moe": qwen3_5_moe,
    "qwen3-next": qwen3_next,
    "granite-hybrid": granite_hybrid,
    "granite-hybrid-dense": granite_hybrid_dense,
    "lfm2-moe": lfm2_moe,
    "nemotron-h": nemotron_h,
    "nemotron-3": nemotron_3,
}
WITH_STATES = (
    *("lfm2", "lfm2-moe", "granite-hybrid", "granite-hybrid-dense"),
    *("qwen3.5", "qwen3.5-moe", "qwen3-next", "nemotron-h", "nemotron-3"),
)
"""Families with layers that have a state."""
WITH_EXPERTS = (
    *("qwen3-moe", "mixtral", "granite-moe", "granite-moe-shared", "gpt-oss", "gemma4-26b"),
    *("lfm2-moe", "granite-hybrid", "qwen3.5-moe", "qwen3-next", "nemotron-3"),
)
"""Families with mixtures of experts."""
ERRORS = {"ministral3": 1e-5}
"""Families whose transformers model computes something in float32 whatever its dtype -> how far its logits are off.

Ministral 3: the factors of the queries."""


def load_reference(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """What transformers makes of a checkpoint, with its plainest attention and experts."""
    with exact(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        ).eval()
