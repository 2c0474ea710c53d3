"""How llama.cpp's converter writes the layers of GGUF files that have a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ARCHITECTURES = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "nemotron_h": "nemotron_h",
}
"""Model types -> llama.cpp's names."""
QWEN = ("qwen3_5_text", "qwen3_5_moe_text")
LINEAR = (*QWEN, "qwen3_next")
"""With gated delta nets, and norms less 1."""


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name of a model whose layers have a state; None: they have none."""
    name = ARCHITECTURES.get(config["model_type"])
    return f"{name}_moe" if name == "nemotron_h" and "moe" in config["layers_block_type"] else name


def fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture that its layers with a state need."""
    kinds = config.get("layer_types", config.get("layers_block_type"))
    if config["model_type"] == "nemotron_h":
        return of_nemotron(config, kinds)
    if config["model_type"] in LINEAR:
        heads = config["linear_num_value_heads"]
        return {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * config["linear_value_head_dim"],
            "attention.recurrent_layers": [kind == "linear_attention" for kind in kinds],
            "full_attention_interval": 4,
            "rope.dimension_count": int(config["head_dim"] * 0.25),
            "rope.dimension_sections": [1, 1, 0, 0],
        }
    heads = [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds]
    if config["model_type"] == "granitemoehybrid":
        return {
            "attention.head_count_kv": heads,
            "ssm.conv_kernel": config["mamba_d_conv"],
            "ssm.state_size": config["mamba_d_state"],
            "ssm.group_count": config["mamba_n_groups"],
            "ssm.time_step_rank": config["mamba_n_heads"],
            "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
            "rope.scaling.finetuned": False,
        }
    return {"attention.head_count_kv": heads, "shortconv.l_cache": config["conv_L_cache"]}


def eps_of(config: Mapping[str, Any]) -> float:
    """Return what is added in norms."""
    return float(next(config[name] for name in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if name in config))


def of_nemotron(config: Mapping[str, Any], kinds: list[str]) -> dict[str, Any]:
    is_moe = "moe" in kinds
    inner = config["moe_intermediate_size" if is_moe else "intermediate_size"]
    fields = {
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds],
        "feed_forward_length": [inner * (kind in ("moe", "mlp")) for kind in kinds],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "block_count": len(kinds),
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "rope.scaling.finetuned": False,
    }
    of_experts = {
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": 1,
    }
    return fields | of_experts if is_moe else fields


def plain_tensor(name: str, full: str, weight: torch.Tensor, config: Mapping[str, Any]) -> tuple[str, torch.Tensor]:
    """Return the name and the values in float32 of a tensor that is not quantised.

    Args:
        name: that the table of llama.cpp has for the module; for `dt_bias` and the like the layer's own.
    """
    last = full.split(".")[-1]
    if last == "A_log":
        weight = -torch.exp(weight)
    if last in ("A_log", "D"):
        return name, weight if "linear_attn" in full else weight[:, None]
    if last in ("dt_bias", "expert_bias", "e_score_correction_bias"):
        return f"{name}.bias", weight
    if full.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        weight = weight.view(config.get("mamba_n_groups") or config["n_groups"], -1)
    if weight.ndim == 3:
        weight = weight[:, 0]
    return f"{name}.{last}", weight


def is_plain(full: str) -> bool:
    """Return whether a tensor is written as `plain_tensor` says."""
    ends = (
        *("A_log", ".D", "dt_bias", "expert_bias", "e_score_correction_bias"),
        *("mamba.norm.weight", "mixer.norm.weight", "conv.conv.weight"),
    )
    return full.endswith(ends) or "conv1d" in full


def module_of(full: str) -> str:
    """Return the module that llama.cpp's table knows a plain tensor by."""
    if full.endswith("dt_bias"):
        return f"{full.removesuffix('dt_bias')}dt_proj"
    return (
        full.removesuffix(".weight")
        .removesuffix(".bias")
        .replace("gate.e_score_correction_bias", "gate.e_score_correction")
    )


def experts_of(config: Mapping[str, Any]) -> int:
    """Return the number of experts of a layer; 0: there are none, or they are counted elsewhere."""
    has_states = config["model_type"] in ARCHITECTURES
    count: int | None = config.get("num_local_experts", config.get("num_experts") if has_states else None)
    return count or 0


def rows_of_qkvz(config: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of Qwen3-Next's first matrix, which has those of each key head in turn, that are q, k and v of
    all heads, and those that are the gate."""
    keys, shared = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    key, value = config["linear_key_head_dim"], shared * config["linear_value_head_dim"]
    rows = torch.arange(keys * 2 * (key + value)).view(keys, -1)
    q, k, v, z = (part.flatten() for part in rows.split([key, key, value, value], dim=1))
    return torch.cat((q, k, v)), z


def expert_module(name: str) -> str:
    """Return the name by which llama.cpp's table knows a layer of experts."""
    for theirs, ours in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        name = name.replace(f"feed_forward.experts.{theirs}", f"mlp.experts.{ours}")
    return name.replace("backbone.layers", "model.layers").replace("mixer.experts", "mlp.experts")


def order_of(full: str, config: Mapping[str, Any]) -> tuple[int, torch.Tensor] | None:
    """Return the dimension of a tensor in which the value heads of Qwen3.5 take turns, and the order of its elements;
    None: there is none."""
    if config["model_type"] not in QWEN or "linear_attn." not in full or full.endswith("norm.weight"):
        return None
    keys, heads, size = (
        config["linear_num_key_heads"],
        config["linear_num_value_heads"],
        config["linear_value_head_dim"],
    )
    before = 2 * keys * config["linear_key_head_dim"] if "in_proj_qkv" in full or "conv1d" in full else 0
    each = size if before or "in_proj_z" in full or "out_proj" in full else 1
    turns = torch.arange(heads * each).view(keys, heads // keys, each).transpose(0, 1).flatten()
    return int("out_proj" in full), torch.cat([torch.arange(before), turns + before])
