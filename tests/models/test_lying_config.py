"""A `config.json` whose sizes the weight files cannot hold is refused before anything is built in them."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

import tiny_families
import tiny_models
from models.formats.loading import load
from sluice.cli.models.servable import judge
from sluice.models.checkpoint import CheckpointError
from tokenizer_makers import byte_tokenizer

MOST_KIB = 64 << 10
HUGE = 10**400


def changed(folder: Path, family: str, fields: dict[str, Any]) -> Path:
    makers = tiny_families if hasattr(tiny_families, family) else tiny_models
    getattr(makers, family)().save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


@pytest.mark.parametrize(
    ("family", "fields", "problem"),
    [
        (
            "llama",
            {"num_hidden_layers": 1_000_000},
            r"num_hidden_layers must be an integer of at most 1024, got 1",
        ),
        (
            "llama",
            {"num_hidden_layers": 1000},
            r"num_hidden_layers must be at most \d+, the number of tensors in",
        ),
        (
            "gpt2",
            {"n_layer": 1000},
            r"n_layer must be at most \d+, the number of tensors in the",
        ),
        ("qwen3_moe", {"num_local_experts": 4097}, r"num_local_experts must be an integer of at most 4096, got 4097"),
        ("qwen3_moe", {"num_local_experts": 1000}, r"num_local_experts must be the number of experts in the weight fi"),
        ("llama", {"head_dim": 1 << 40}, r"head_dim must be an integer of at most 16777216, got"),
        (
            "llama",
            {"vocab_size": 1 << 20},
            r"vocab_size must be what fits the weight files, whose largest",
        ),
        ("llama", {"intermediate_size": HUGE}, r"intermediate_size must be an integer of at most 16777216, got 1000"),
        (
            "llama",
            {"max_position_embeddings": HUGE},
            r"max_position_embeddings must be an integer of at least 1, got",
        ),
        ("llama", {"rms_norm_eps": HUGE}, r"rms_norm_eps must be a number above 0, got 1000"),
        ("llama", {"attention_chunk_size": [1] * 100_000}, r"attention_chunk_size = .* is not supported"),
    ],
)
def test_sizes_that_the_files_cannot_hold(family: str, fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, family, fields)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=problem) as caught:
        load(folder)
    assert len(str(caught.value)) < 600
    said = judge(folder).problem
    assert said is not None, "`sluice models` lists it as one that can be served"
    assert len(said) < 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB


def test_nesting_beyond_reason(tmp_path: Path) -> None:
    folder = changed(tmp_path, "llama", {})
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        load(folder)
