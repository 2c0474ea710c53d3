"""Quantised weights that are cut into shards: each shard has the numbers that the whole model has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quantized_checkpoints as made
import tiny_models
from gguf_makers import write_gguf
from models.formats.loading import load, refusal
from models.formats.test_compressed import SCHEMES, config_of, storing
from models.formats.test_four_bits import FORMATS
from models.formats.test_to_int8 import Recorder
from sluice.models.hub import resolve_checkpoint
from sluice.models.quantized import QuantizedLinear
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member
from thread_groups import thread_members

INPUTS = (0, 0, 0, 1, 0, 0, 1)
"""Whether q, k, v, o, gate, up and down are cut by their inputs."""
STORED = {name: FORMATS[name] for name in ("gptq", "awq")} | {
    name: (config_of(*SCHEMES[name]), storing(*SCHEMES[name])) for name in ("int8", "int4-zero-points", "fp8-block")
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    tiny_models.qwen2(**sizes).save_pretrained(folder)
    return folder


def weights(folder: Path, member: Member = ALONE, **options: Any) -> list[torch.Tensor]:
    """Return the weights of the layers in their order, widened."""
    packer = Recorder()
    load(folder, dtype="bfloat16", packer=packer, member=member, **options)
    return [
        part.weight.dense(torch.float32) if isinstance(part, QuantizedLinear) else part.weight for part in packer.seen
    ]


def assert_shards_are_parts(folder: Path, **options: Any) -> None:
    whole = weights(folder, **options)
    shards = [weights(folder, member, **options) for member in thread_members(Layout(2))]
    for dim, weight, *parts in zip(2 * INPUTS, whole, *shards, strict=True):
        assert torch.equal(torch.cat(parts, dim), weight)
    stages = [weights(folder, member, **options) for member in thread_members(Layout(1, 2))]
    assert all(map(torch.equal, stages[0] + stages[1], whole))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_that_are_quantised_on_load(quantization: str, source: Path) -> None:
    """An output whose inputs are on several shards has one scale, that of its largest weight on any of them."""
    assert_shards_are_parts(source, quantization=quantization)


@pytest.mark.parametrize("name", STORED)
def test_weights_that_are_stored_quantised(name: str, source: Path, tmp_path: Path) -> None:
    """Scales and zero points of other rows or groups; rows that were not dequantised."""
    folder, _ = made.quantized(source, tmp_path, *STORED[name])
    assert_shards_are_parts(folder)
    assert_shards_are_parts(folder, quantization="int8" if name == "int8" else "int4")


def test_weights_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of q and k are in another order there: cut first, they would be those of other heads."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    tiny_models.llama(tie_word_embeddings=True, **sizes).save_pretrained(tmp_path / "source")
    path, _ = write_gguf(tmp_path / "source", tmp_path / "model.gguf", "Q4_0")
    folder = resolve_checkpoint(str(path))
    assert_shards_are_parts(folder)
    assert_shards_are_parts(folder, quantization="int4")


def test_a_group_of_inputs_is_on_one_shard(source: Path, tmp_path: Path) -> None:
    """Half of a group would be multiplied with the scales of another."""
    folder, _ = made.quantized(source, tmp_path, *FORMATS["gptq-channel"])
    message = refusal(folder, quantization="int4", dtype="bfloat16", member=thread_members(Layout(2))[0])
    assert "down_proj.weight cannot be cut: groups of 128 inputs do not divide a shard's 64" in message
    assert_shards_are_parts(folder)
