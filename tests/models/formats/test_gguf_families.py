"""GGUF files of families that differ in more than names from Llama: numbers must be those of the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_families
import tiny_models
from compiled import library
from gguf_makers import write_gguf
from models.formats.loading import assert_same, load
from paged_model import chunked_logits
from slow import slow
from sluice.kernels.cpu.library import Kernels
from sluice.models.checkpoint import CheckpointError
from sluice.models.decoder import Decoder
from sluice.models.hub import resolve_checkpoint
from sluice.models.packers import NativePacker

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
NATIVE = NativePacker(Kernels(library(), library().best(), 1))
PROMPTS = (tiny_models.prompt(30), tiny_models.prompt(5, 1))
GEMMA3: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
}
FACTORS = {"short": [1.0, 1.1, 1.2, 1.3], "long": [2.0, 3.0, 4.0, 5.0]}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": FACTORS["short"],
    "long_factor": FACTORS["long"],
}
LLAMA_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
UNROUNDED = tiny_families.YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GEMMA4 = {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 32}
GEMMA4_FIELDS: dict[str, Any] = {
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 30.0,
}
ROTATED_HALF = {"rope_freqs.weight": np.array([1.0] * 8 + [1e30] * 8, dtype=np.float32)}
"""How a converter writes which pairs of a head are rotated."""
LINEAR = {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
ALL = {"num_experts_per_tok": 10}
"""So that rounding chooses no other experts, which would change what states keep."""
TWO: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "head_dim": 16}
NEMOTRON_3 = {
    "layers_block_type": ["M", "E", "*"],
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 12,
}
OF_QWEN3_NEXT = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
UNLIMITED = {"time_step_limit": (0.0, math.inf), "mamba_d_head": "auto", "mamba_expand": 2, "mamba_proj_bias": False}
FACTORS_OF_GRANITE = {"embedding_scale": 1.5, "residual_scale": 0.8, "attention.scale": 0.3, "logit_scale": 0.7}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        tiny_families.gemma2,
        {"head_dim": 32, "query_pre_attn_scalar": 32},
        {"attention.sliding_window": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    ),
    "gemma3": (
        tiny_families.gemma3,
        GEMMA3 | {"attn_logit_softcapping": None},
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, False, True, False],
            "rope.freq_base_swa": 30.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 3.0,
        },
    ),
    "gemma4": (
        tiny_families.gemma4,
        GEMMA4,
        {
            **GEMMA4_FIELDS,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 32,
            "feed_forward_length": [96] * 4 + [192] * 2,
        },
    ),
    "gemma4-31b": (
        tiny_families.gemma4_31b,
        GEMMA4 | {"hidden_size_per_layer_input": 0},
        {
            **GEMMA4_FIELDS,
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "attention.head_count_kv": [2, 1] * 3,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma4-26b": (
        tiny_families.gemma4_26b,
        GEMMA4 | {"hidden_size_per_layer_input": 0, "moe_intermediate_size": 32},
        {
            **GEMMA4_FIELDS,
            "attention.sliding_window_pattern": [True, False] * 2,
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "expert_count": 10,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
        },
    ),
    "ministral3": (
        tiny_families.ministral3,
        {"head_dim": 16},
        {
            "rope.dimension_count": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 8.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
    ),
    "smollm3": (tiny_families.smollm3, {"no_rope_layers": [1, 1, 1, 0, 1]}, {}),
    "granite": (
        tiny_families.granite,
        {},
        {"embedding_scale": 1.5, "residual_scale": 0.8, "attention.scale": 0.3, "logit_scale": 0.7},
    ),
    "olmo2": (tiny_families.olmo2, {}, {}),
    "phi3": (tiny_families.phi3, {}, {"attention.sliding_window": 9, "rope.dimension_count": 16}),
    "phi4-mini": (
        tiny_families.phi3,
        {"sliding_window": None, "original_max_position_embeddings": 16, "rope_parameters": LONGROPE},
        {
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": (1 + math.log(512 / 16) / math.log(16)) ** 0.5,
        },
    ),
    "qwen3-moe": (
        tiny_families.qwen3_moe,
        {"mlp_only_layers": [], "norm_topk_prob": True, "head_dim": 16, "moe_intermediate_size": 32},
        {"expert_feed_forward_length": 32},
    ),
    "granite-moe-shared": (
        tiny_families.granite_moe_shared,
        {"shared_intermediate_size": 32, "attention_multiplier": 0.3},
        {
            "expert_shared_feed_forward_length": 32,
            "residual_scale": 0.8,
            "attention.scale": 0.3,
            "logit_scale": 1.0,
        },
    ),
    "gpt-oss": (
        tiny_families.gpt_oss,
        {"head_dim": 16, "swiglu_limit": 7.0, "swiglu_alpha": 1.702, "rope_parameters": UNROUNDED},
        {
            "attention.sliding_window": 9,
            "expert_feed_forward_length": 96,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "lfm2": (tiny_families.lfm2, {"conv_bias": False, "block_auto_adjust_ff_dim": False}, {}),
    "lfm2-moe": (
        tiny_families.lfm2_moe,
        {"moe_intermediate_size": 32, "routed_scaling_factor": 1.0},
        {"expert_feed_forward_length": 32, "leading_dense_block_count": 1, "expert_gating_func": 2},
    ),
    "granite-hybrid": (
        tiny_families.granite_hybrid,
        {
            "mamba_n_heads": 4,
            "num_experts_per_tok": 10,
            "intermediate_size": 32,
            "shared_intermediate_size": 64,
            **UNLIMITED,
        },
        {"expert_shared_feed_forward_length": 64, "feed_forward_length": 32, **FACTORS_OF_GRANITE},
    ),
    "granite-hybrid-dense": (
        tiny_families.granite_hybrid_dense,
        {"mamba_n_heads": 4, "shared_intermediate_size": 96, "position_embedding_type": None, **UNLIMITED},
        {"expert_shared_feed_forward_length": 96, **FACTORS_OF_GRANITE},
    ),
    "qwen3.5": (tiny_families.qwen3_5, LINEAR, {}),
    "qwen3.5-moe": (
        tiny_families.qwen3_5_moe,
        LINEAR | ALL | TWO | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
        {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "feed_forward_length": 96},
    ),
    "qwen3-next": (
        tiny_families.qwen3_next,
        LINEAR | ALL | TWO | OF_QWEN3_NEXT,
        {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "feed_forward_length": 96},
    ),
    "nemotron-h": (tiny_families.nemotron_h, MAMBA, {}),
    "nemotron-3": (
        tiny_families.nemotron_3,
        MAMBA | NEMOTRON_3,
        {},
    ),
    "mixtral": (tiny_families.mixtral, {"sliding_window": None}, {}),
    "olmo3": (
        tiny_families.olmo3,
        {"rope_parameters": {"full_attention": LLAMA_ROPE, "sliding_attention": LLAMA_ROPE}},
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, False, True, False],
            "rope.freq_base_swa": 1000.0,
        },
    ),
}
"""Family -> what makes it, sizes of blocks, and what a converter writes of its config."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own for every test."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


def tensors_of(family: str) -> dict[str, np.ndarray]:
    """Return what a converter writes beside the weights."""
    factors = {f"rope_factors_{name}.weight": np.array(each, dtype=np.float32) for name, each in FACTORS.items()}
    return {"phi4-mini": factors, "gemma4": ROTATED_HALF, "gemma4-31b": ROTATED_HALF, "gemma4-26b": ROTATED_HALF}.get(
        family, {}
    )


@pytest.mark.parametrize("family", CASES)
def test_files_hold_what_the_checkpoint_does(family: str, tmp_path: Path) -> None:
    """A norm that is added to 1 twice, rows in another order, or a factor that is not read still gives fluent text."""
    make, sizes, fields = CASES[family]
    make(**(SIZES | sizes)).save_pretrained(tmp_path / "source")
    path, plain = write_gguf(
        tmp_path / "source", tmp_path / "model.gguf", "Q8_0", fields=fields, tensors=tensors_of(family)
    )
    ours, theirs = (load(folder, dtype="float32") for folder in (resolve_checkpoint(str(path)), plain))
    if not family.startswith("qwen3.5"):  # whose value heads are in another order
        assert_same(ours, theirs)
    assert isinstance(ours, Decoder)
    assert isinstance(theirs, Decoder)
    assert ours.spec.architecture == theirs.spec.architecture
    found, expected = (chunked_logits(model, PROMPTS, page_size=4, seed=0) for model in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 if family.startswith("qwen3.5") else 1e-5)


@pytest.mark.parametrize("family", [name if name in ("gemma4", "phi3", "qwen3-moe") else slow(name) for name in CASES])
def test_matrices_are_multiplied_as_they_are_stored(family: str, tmp_path: Path) -> None:
    """By the kernels, near what the same numbers give in float32: one matrix for gate and up is two parts to them."""
    make, sizes, fields = CASES[family]
    make(**(SIZES | sizes)).save_pretrained(tmp_path / "source")
    path, plain = write_gguf(
        tmp_path / "source", tmp_path / "model.gguf", "Q8_0", fields=fields, tensors=tensors_of(family)
    )
    ours = load(resolve_checkpoint(str(path)), dtype="bfloat16", packer=NATIVE)
    assert ours.spec.quantization.startswith("blocks")
    found = chunked_logits(ours, PROMPTS, page_size=4, seed=0)
    expected = chunked_logits(load(plain, dtype="float32"), PROMPTS, page_size=4, seed=0)
    for one, other in zip(found, expected, strict=True):
        assert float((one.float() - other).norm() / other.norm()) < 0.3


def test_qwen3_vl_is_a_qwen3(tmp_path: Path) -> None:
    """The text model is one, with rotations on three grids, on which the positions of a text are the same."""
    tiny_models.qwen3(**SIZES, head_dim=16).save_pretrained(tmp_path / "source")
    fields = {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 0}
    written = {"architecture": "qwen3vl", "fields": fields}
    path, plain = write_gguf(tmp_path / "source", tmp_path / "model.gguf", "Q8_0", **written)
    ours, theirs = (load(folder, dtype="float32") for folder in (resolve_checkpoint(str(path)), plain))
    assert ours.spec.architecture == "Qwen3VLTextForCausalLM"
    found, expected = (chunked_logits(model, PROMPTS, page_size=4, seed=0) for model in (ours, theirs))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


REFUSED: dict[str, tuple[str, Any, str]] = {
    "gemma4, sizes": ("gemma4", {"attention.value_length_swa": 32}, "value_length_swa must be the head size, 16"),
    "gemma4, heads": ("gemma4", {"attention.head_count_kv": [2, 2, 1, 2, 2, 2]}, "one number for layers with a window"),
    "gemma4, inner": ("gemma4", {"feed_forward_length": [96] * 5 + [192]}, "twice as many for layers that share"),
    "gemma4, experts": ("gemma4", {"expert_count": 4}, "blk.0.ffn_gate_inp.weight is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_contradict_themselves_are_refused(case: str, tmp_path: Path) -> None:
    family, changes, message = REFUSED[case]
    make, sizes, fields = CASES[family]
    make(**(SIZES | sizes)).save_pretrained(tmp_path / "source")
    path, _ = write_gguf(
        tmp_path / "source", tmp_path / "model.gguf", "F32", fields=fields | changes, tensors=ROTATED_HALF
    )
    with pytest.raises(CheckpointError, match=message):
        resolve_checkpoint(str(path))


def test_keys_that_no_layer_has_are_skipped(tmp_path: Path) -> None:
    """Published checkpoints hold keys and values for layers that read those of others."""
    make, sizes, fields = CASES["gemma4"]
    make(**(SIZES | sizes)).save_pretrained(tmp_path / "source")
    logits = []
    for name, rows in (("plain", 0), ("more", 32)):
        extra = {"blk.4.attn_k.weight": np.ones((rows, 64), dtype=np.float32)} if rows else {}
        path, _ = write_gguf(
            tmp_path / "source", tmp_path / f"{name}.gguf", "F32", fields=fields, tensors=ROTATED_HALF | extra
        )
        model = load(resolve_checkpoint(str(path)), dtype="float32")
        logits.append(torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0)))
    assert torch.equal(*logits)
