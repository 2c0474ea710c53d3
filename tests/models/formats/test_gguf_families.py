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
from gguf_makers import write_gguf
from models.formats.loading import assert_same, load
from paged_model import chunked_logits
from sluice.models.decoder import Decoder
from sluice.models.hub import resolve_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
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
    "olmo3": (
        tiny_families.olmo3,
        {"rope_parameters": {"full_attention": LLAMA_ROPE, "sliding_attention": LLAMA_ROPE}},
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True, False, True, False]},
    ),
}
"""Family -> what makes it, sizes of blocks, and what a converter writes of its config."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own for every test."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


@pytest.mark.parametrize("family", CASES)
def test_files_hold_what_the_checkpoint_does(family: str, tmp_path: Path) -> None:
    """A norm that is added to 1 twice, rows in another order, or a factor that is not read still gives fluent text."""
    make, sizes, fields = CASES[family]
    make(**(SIZES | sizes)).save_pretrained(tmp_path / "source")
    factors = {f"rope_factors_{name}.weight": np.array(each, dtype=np.float32) for name, each in FACTORS.items()}
    tensors = factors if family == "phi4-mini" else {}
    path, plain = write_gguf(tmp_path / "source", tmp_path / "model.gguf", "Q8_0", fields=fields, tensors=tensors)
    ours, theirs = (load(folder, dtype="float32") for folder in (resolve_checkpoint(str(path)), plain))
    assert_same(ours, theirs)
    assert isinstance(ours, Decoder)
    assert isinstance(theirs, Decoder)
    assert ours.spec.architecture == theirs.spec.architecture
    found, expected = (chunked_logits(model, PROMPTS, page_size=4, seed=0) for model in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
