"""FP8 as DeepSeek and Qwen publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quantized_checkpoints as made
import tiny_models
from models.formats.loading import assert_same, load, refusal

BLOCK = 16
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}


def in_blocks(weight: torch.Tensor) -> made.Stored:
    """Quantise block by block, in plain loops; sizes need not be multiples of the block."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    stored, scales = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
    plain = torch.empty(weight.shape)
    for row in range(rows):
        for column in range(columns):
            at = slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK)
            scales[row, column] = weight[at].abs().max() / 448
            stored[at] = (weight[at] / scales[row, column]).to(torch.float8_e4m3fn)
            plain[at] = stored[at].float() * scales[row, column]
    return {"weight": stored, "weight_scale_inv": scales}, plain.bfloat16()


def whole(weight: torch.Tensor) -> made.Stored:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    parts = {"weight": stored, "weight_scale": scale.reshape(()), "input_scale": torch.ones(())}
    return parts, (stored.float() * scale).bfloat16()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("qwen3", tmp_path_factory.mktemp("qwen3"))


def test_blocks(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes here are no multiples of a block: the last scale of a row or a column is that of a smaller block."""
    ours, theirs = made.quantized(plain, tmp_path, BLOCKS, in_blocks)
    assert_same(load(ours), load(theirs))
    monkeypatch.setattr("sluice.models.formats.dequantize.AT_ONCE", 1)
    assert_same(load(ours), load(theirs))


def test_one_scale_a_tensor_and_modules_that_are_not_converted(plain: Path, tmp_path: Path) -> None:
    """A weight that was left alone, or a static scale of activations, must not stop the checkpoint."""
    keep = "model.layers.0.mlp.gate_proj"
    config = {"quant_method": "fp8", "activation_scheme": "static", "modules_to_not_convert": ["lm_head", keep]}
    ours, theirs = made.quantized(plain, tmp_path, config, whole, keep=(keep,))
    assert_same(load(ours), load(theirs))


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "fmt": (BLOCKS | {"fmt": "e5m2"}, "fmt must be e4m3, got 'e5m2'"),
    "block": (BLOCKS | {"weight_block_size": [16]}, "weight_block_size must be a list of two sizes, got [16]"),
    "other block": (BLOCKS | {"weight_block_size": [8, 8]}, "weight_scale_inv has shape (2, 3), fp8 requires (4, 6)"),
    "kept": (BLOCKS | {"modules_to_not_convert": ["self_attn"]}, "k_proj.weight has dtype torch.float8_e4m3fn"),
    "method": (BLOCKS | {"quant_method": "modelopt"}, "quant_method 'modelopt' is not supported; accepted are compre"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_does_not_fit_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    """A configuration that is not the weights' own would scale them wrongly."""
    config, message = CONFIGS[name]
    ours, _ = made.quantized(plain, tmp_path, config, in_blocks)
    assert message in refusal(ours)
