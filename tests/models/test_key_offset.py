"""What pages of int8 hold keys without, where a bias is far larger than what a text adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny_models
from sluice import LLM, SamplingParams
from sluice.models.key_offset import key_offset
from sluice.models.layers import Rotary
from sluice.models.ops import rotate
from sluice.models.rope import Rope

ROPE = Rope(1e6)
PROMPTS = [tiny_models.prompt(90, 1), tiny_models.prompt(40, 2)]


def test_large_channels_that_turn_slowly_are_removed() -> None:
    """And those that turn often are not made larger."""
    bias = torch.zeros(2, 128)
    bias[0, [62, 63]], bias[0, 127], bias[1, 126], bias[1, 3] = 200.0, -300.0, 90.0, 50.0
    offset = key_offset(bias.flatten(), ROPE, 128)
    angles = Rotary(ROPE, 128, torch.float32)(torch.arange(0, 20_000, 100))
    left = rotate(bias.expand(200, 2, 128), angles) - offset
    assert left[:, 0].abs().max() < 0.05 * 300
    assert left[:, 1, [62, 126]].abs().max() < 0.05 * 90
    assert left[:, 1].abs().max() < 1.01 * 50


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_bias_with_outliers_costs_nothing(backend: str, tmp_path: Path) -> None:
    """Scales that the bias set, an offset before the rotation, or of another head's keys."""
    model = tiny_models.qwen2(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
    )
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data.view(2, 16)[:, [6, 7, 15]] += torch.tensor(
            [[60.0, 90.0, -70.0], [-80.0, 50.0, 60.0]]
        )
    model.save_pretrained(tmp_path)
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    found = []
    for kind in ("auto", "int8"):
        options = {"dtype": "float32", "device": "cpu", "page_size": 16, "max_total_tokens": 512}
        with LLM(tmp_path, kv_cache_dtype=kind, attention_backend=backend, **options) as llm:
            results = llm.generate(PROMPTS, params)
        found.append([each.logprob for result in results for each in result.prompt_logprobs or () if each is not None])
    differences = [abs(a - b) for a, b in zip(*found, strict=True)]
    assert 0 < sum(differences) / len(differences) < 0.08  # 0.03 without a bias, 0.28 with it in the pages
