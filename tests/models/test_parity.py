"""Logits in random chunks over shuffled pages, beside other requests, against those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from paged import Row, empty_kv, forward_batch
from paged_model import chunked_logits
from sluice.attention.reference import ReferenceAttention
from sluice.models.base import CausalLM
from sluice.models.loader import load_model

PROMPTS = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((45, 1, 20)))
Folder = Callable[[str], Path]


def load(folder: Path, dtype: str, device: str = "cpu") -> CausalLM:
    return load_model(folder, dtype=dtype, device=torch.device(device), progress=False)[0]


def worst_error(model: CausalLM, reference: list[torch.Tensor], page_size: int = 4, seed: int = 0) -> float:
    ours = chunked_logits(model, PROMPTS, page_size=page_size, seed=seed)
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, reference, strict=True))


def reference_logits(folder: Path, dtype: torch.dtype) -> list[torch.Tensor]:
    model = tiny_models.load_reference(folder, dtype)
    return [tiny_models.logits(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_float64_is_exact(family: str, tiny_folder: Folder) -> None:
    """In float64, including norms and rotary tables, any difference in the mathematics shows."""
    folder = tiny_folder(family)
    reference = reference_logits(folder, torch.float64)
    assert min(float(part.std()) for part in reference) > 0.1
    model = load(folder, "float64")
    for seed, page_size in enumerate((1, 4, 16)):
        assert worst_error(model, reference, page_size, seed) <= 1e-9


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_float32(family: str, tiny_folder: Folder) -> None:
    folder = tiny_folder(family)
    assert worst_error(load(folder, "float32"), reference_logits(folder, torch.float32)) <= 1e-4


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_bfloat16_errs_no_more_than_transformers(family: str, tiny_folder: Folder) -> None:
    """At most twice its error: norms, rotary angles and softmax widen at least where transformers does."""
    folder = tiny_folder(family)
    exact = reference_logits(folder, torch.float64)
    theirs = reference_logits(folder, torch.bfloat16)
    their_error = max(float((a.double() - b).abs().max()) for a, b in zip(theirs, exact, strict=True))
    assert 0 < worst_error(load(folder, "bfloat16"), exact) <= 2 * their_error


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_float64_is_exact_on_cuda(family: str, tiny_folder: Folder) -> None:
    folder = tiny_folder(family)
    assert worst_error(load(folder, "float64", "cuda"), reference_logits(folder, torch.float64)) <= 1e-9


def test_float16_works_on_the_cpu(tiny_folder: Folder) -> None:
    folder = tiny_folder("llama")
    assert 0 < worst_error(load(folder, "float16"), reference_logits(folder, torch.float64)) < 0.05


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, all parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.3,
        "truncate": False,
    },
    "yarn, half of the magnitude's parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
    },
    "yarn, given magnitude": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_rope_scalings(rope: str, tmp_path: Path) -> None:
    tiny_models.llama(rope_parameters=ROPES[rope]).save_pretrained(tmp_path)
    assert worst_error(load(tmp_path, "float64"), reference_logits(tmp_path, torch.float64)) <= 1e-9


VARIANTS: dict[str, Callable[[], Any]] = {
    "llama, tied": lambda: tiny_models.llama(tie_word_embeddings=True),
    "llama, gelu": lambda: tiny_models.llama(hidden_act="gelu"),
    "mistral, no window": lambda: tiny_models.mistral(sliding_window=None),
    "qwen2, layer types": lambda: tiny_models.qwen2_windows(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "qwen3, biases and windows": lambda: tiny_models.qwen3(
        attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=2, tie_word_embeddings=False
    ),
    "gpt2, untied": lambda: tiny_models.gpt2(tie_word_embeddings=False),
    "gpt2, other scales": lambda: tiny_models.gpt2(
        scale_attn_by_inverse_layer_idx=True, n_inner=50, activation_function="gelu"
    ),
    "gpt2, unscaled": lambda: tiny_models.gpt2(scale_attn_weights=False, activation_function="relu"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_family(variant: str, tmp_path: Path) -> None:
    """Change each option of a config that changes the numbers."""
    VARIANTS[variant]().save_pretrained(tmp_path)
    assert worst_error(load(tmp_path, "float64"), reference_logits(tmp_path, torch.float64)) <= 1e-9


def test_no_logits_asked_for_gives_none(tiny_folder: Folder) -> None:
    """A step in the middle of a prompt samples nothing, but must write its KV."""
    model = load(tiny_folder("llama"), "float64")
    spec = model.spec
    kv = [empty_kv(1, 16, spec.num_kv_heads, spec.head_dim, spec.dtype) for _ in range(spec.num_layers)]
    tokens = PROMPTS[0][:10]
    with torch.inference_mode():
        first = model.logits(model(forward_batch([Row(tokens[:9], 0, [0], logits=())], 16), kv, ReferenceAttention()))
        last = model.logits(model(forward_batch([Row(tokens[9:], 9, [0])], 16), kv, ReferenceAttention()))
    assert first.shape == (0, tiny_models.VOCAB_SIZE)
    torch.testing.assert_close(last, chunked_logits(model, [tokens], page_size=16, seed=0)[0][-1:])
