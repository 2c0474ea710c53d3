"""How experts are loaded: one by one into their packed place, from every way in which they are stored, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_families
import tiny_models
from compiled import library
from gguf_makers import write_gguf
from models.formats.loading import assert_same, load, refusal
from paged_model import chunked_logits
from peak_memory import PeakMemory
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels
from sluice.models.checkpoint import CheckpointError
from sluice.models.experts import ClampedSwiGLU, ExpertLayers
from sluice.models.hub import resolve_checkpoint
from sluice.models.linear import EmptyLinear, Packer
from sluice.models.ops import Ops
from sluice.models.packers import NativePacker

WEIGHTS, CONFIG = "model.safetensors", "config.json"
EXPERTS = 10
LARGE = {"hidden_size": 64, "moe_intermediate_size": 128, "num_local_experts": 32, "mlp_only_layers": []}
EXPERT_NUMBERS = 3 * 64 * 128


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


@pytest.mark.parametrize(("quantization", "number"), [(None, 2), ("int8", 1.07), ("int4", 0.57)])
def test_memory_is_that_of_the_packed_model_and_one_expert(
    quantization: str | None, number: float, tmp_path: Path
) -> None:
    """Not that of a layer's experts, of which there are 32: a large model would need a multiple of its size."""
    tiny_families.qwen3_moe(**LARGE).save_pretrained(tmp_path)
    packer = NativePacker(Kernels(library(), library().best(), 1))
    with PeakMemory() as memory:
        model = load(tmp_path, dtype="bfloat16", quantization=quantization, packer=packer)
    experts = 4 * 32 * EXPERT_NUMBERS * number
    assert 0.8 * experts < memory.now
    stored = 2 * 64 * 131 * 4  # the largest tensor and the next one, which are in the file and counted all the same
    assert memory.peak <= memory.now + EXPERT_NUMBERS * 4 + stored
    assert module_bytes(model) <= memory.peak


def stacked(tensors: dict[str, torch.Tensor], experts: int = EXPERTS) -> dict[str, torch.Tensor]:
    """Return tensors as transformers 5 holds them: all experts of a layer in one."""
    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    layers = {name.split(".experts.")[0] for name in tensors if ".experts." in name}
    for layer in layers:
        of = [
            [tensors[f"{layer}.experts.{number}.{part}_proj.weight"] for number in range(experts)]
            for part in ("gate", "up", "down")
        ]
        gate, up, down = (torch.stack(each) for each in of)
        found[f"{layer}.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        found[f"{layer}.experts.down_proj"] = down
    return found


def test_one_tensor_of_all_experts_is_the_same(tmp_path: Path) -> None:
    tiny_families.qwen3_moe().save_pretrained(tmp_path / "each")
    tiny_families.qwen3_moe().save_pretrained(tmp_path / "all")
    save_file(stacked(load_file(tmp_path / "each" / WEIGHTS)), tmp_path / "all" / WEIGHTS)
    assert_same(load(tmp_path / "all"), load(tmp_path / "each"))


Change = Callable[[dict[str, torch.Tensor]], object]
REFUSED: dict[str, tuple[str, dict[str, Any], Change, str]] = {
    "an expert is missing": (
        "qwen3_moe",
        {},
        lambda t: t.pop("model.layers.1.mlp.experts.3.up_proj.weight"),
        "the checkpoint lacks the tensor layers.1.mlp.experts.3.up_proj.weight",
    ),
    "an expert too many": (
        "qwen3_moe",
        {},
        lambda t: t.update({"model.layers.1.mlp.experts.10.up_proj.weight": torch.ones(20, 32)}),
        "unexpected tensor model.layers.1.mlp.experts.10.up_proj.weight",
    ),
    "a stack of other experts": (
        "granite_moe",
        {},
        lambda t: t.update({(n := "model.layers.0.block_sparse_moe.output_linear.weight"): t[n][:8].clone()}),
        "output_linear.weight has 8 experts, and the config says 10",
    ),
    "a stack of other sizes": (
        "granite_moe",
        {},
        lambda t: t.update({(n := "model.layers.0.block_sparse_moe.input_linear.weight"): t[n][:, :87].clone()}),
        "has the shape [10, 87, 32]; those of experts have 3 dimensions, and outputs of 2 layers",
    ),
    "another shared size": (
        "granite_moe_shared",
        {"shared_intermediate_size": 30},
        lambda t: None,
        "tensor layers.0.mlp.shared_mlp.gate_proj.weight has shape (28, 32), config.json requires (30, 32)",
    ),
    "more chosen than held": (
        "qwen3_moe",
        {"num_experts_per_tok": 11},
        lambda t: None,
        "num_experts_per_tok must be at most num_local_experts = 10, got 11",
    ),
    "experts of another config": (
        "mixtral",
        {"num_local_experts": 12},
        lambda t: None,
        "num_local_experts must be the number of experts in the weight files, got 12",
    ),
    "layers that are not there": (
        "qwen3_moe",
        {"mlp_only_layers": [4]},
        lambda t: None,
        "mlp_only_layers must be a list of layers from 0 to 3, got [4]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    family, fields, change, message = REFUSED[case]
    getattr(tiny_families, family)().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | fields))
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_gating_func": 2}, "qwen3moe.expert_gating_func = 2 is not supported"),
        ({"expert_group_count": 4}, "qwen3moe.expert_group_count = 4 is not supported"),
        ({"expert_weights_scale": 2.5}, "qwen3moe.expert_weights_scale = 2.5 is not supported"),
        ({"expert_shared_count": 1}, "qwen3moe.expert_shared_count = 1 is not supported"),
        ({"expert_count": 12}, "blk.0.ffn_gate_inp.weight has the shape [10, 64], and the sizes of qwen3moe ask for"),
    ],
)
def test_routers_that_are_not_known_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    """In a GGUF file, of which llama.cpp would compute the same model in another way."""
    sizes = {"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 32, "mlp_only_layers": []}
    tiny_families.qwen3_moe(**sizes).save_pretrained(tmp_path / "source")
    own = {"expert_feed_forward_length": 32}
    path, _ = write_gguf(tmp_path / "source", tmp_path / "model.gguf", "F32", fields=own | fields)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        resolve_checkpoint(str(path))


def layers(count: int, dtype: torch.dtype) -> list[ExpertLayers]:
    draw = torch.Generator().manual_seed(0)

    def linear(inputs: int, outputs: int) -> EmptyLinear:
        layer = EmptyLinear(inputs, outputs, bias=True, dtype=dtype)
        layer.weight.data = torch.randn(outputs, inputs, generator=draw).to(dtype)
        layer.bias.data = torch.randn(outputs, generator=draw).to(dtype)
        return layer

    return [ExpertLayers(linear(16, 24), linear(16, 24), linear(24, 16)) for _ in range(count)]


@pytest.mark.parametrize("activation", ["silu", ClampedSwiGLU(1.0, 1.5)])
def test_experts_are_summed_as_one_token_at_a_time_would_be(activation: str | ClampedSwiGLU) -> None:
    """Also an expert that no token chose, one with a single token, and no tokens at all."""
    made = layers(6, torch.float64)
    packed = Packer().experts(iter(layers(6, torch.float64)), activation)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(9, 16, generator=draw, dtype=torch.float64)
    ids = torch.stack([torch.randperm(4, generator=draw)[:3] for _ in range(9)])
    ids[0] = torch.tensor([2, 5, 0])
    weights = torch.rand(9, 3, generator=draw, dtype=torch.float64)
    found = packed(x, ids, weights, Ops())
    for token in range(9):
        total = torch.zeros(16, dtype=torch.float64)
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            gate, up, down = made[expert]
            one, other = gate(x[token]), up(x[token])
            if isinstance(activation, ClampedSwiGLU):
                one, other = one.clamp(max=1.0), other.clamp(-1.0, 1.0)
                inner = (other + 1) * one * torch.sigmoid(1.5 * one)
            else:
                inner = torch.nn.functional.silu(one) * other
            total += weight * down(inner)
        torch.testing.assert_close(found[token], total.detach())
    assert packed(x[:0], ids[:0], weights[:0], Ops()).shape == (0, 16)


def test_a_token_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """By the kernels, in bfloat16: its experts, and the order of their sum, depend on no other token."""
    tiny_families.qwen3_moe(hidden_size=64, head_dim=16, moe_intermediate_size=32).save_pretrained(tmp_path)
    model = load(tmp_path, dtype="bfloat16", packer=NativePacker(Kernels(library(), library().best(), 1)))
    mlp = model.get_submodule("layers.0.mlp")
    x = torch.randn(70, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = mlp(x, Ops())
    for rows in (1, 2, 7, 33):
        for start in (0, 20, 70 - rows):
            assert torch.equal(mlp(x[start : start + rows].contiguous(), Ops()), whole[start : start + rows])
    assert len(chunked_logits(model, [tiny_models.prompt(5)], page_size=4, seed=0)) == 1
