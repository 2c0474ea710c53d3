"""Quantised checkpoints that are loaded in int8, and the memory that loading takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import quantized_checkpoints as made
import tiny_models
from models.formats.loading import load
from models.formats.test_compressed import SCHEMES, config_of, storing
from peak_memory import PeakMemory
from sluice.device.memory import module_bytes
from sluice.models.linear import Packer
from sluice.models.quantized import Int4Weight


class Recorder(Packer):
    """Keeps what it is given, and packs nothing."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def linear(self, *parts: Any, activation: str | None = None) -> nn.Module:
        self.seen += parts
        return nn.ModuleList(parts)

    def gated(self, gate: Any, up: Any, activation: str) -> nn.Module:
        return self.linear(gate, up)


@pytest.fixture
def int8(tmp_path: Path) -> Path:
    """A checkpoint of int8 weights, with a scale for each channel."""
    tiny_models.llama(hidden_size=64, intermediate_size=512, num_hidden_layers=2).save_pretrained(tmp_path / "source")
    scheme = SCHEMES["int8"]
    return made.quantized(tmp_path / "source", tmp_path, config_of(*scheme), storing(*scheme))[0]


def test_weights_of_int8_keep_their_numbers(int8: Path) -> None:
    """Rounding them to bfloat16 on the way would move many of them by one."""
    packer = Recorder()
    load(int8, dtype="bfloat16", quantization="int8", packer=packer)
    stored = [value for name, value in load_file(int8 / made.WEIGHTS).items() if name.endswith("_proj.weight")]
    found = [part.weight.values for part in packer.seen]
    assert len(stored) == 14
    assert all(any(torch.equal(value, other) for other in found) for value in stored)


def test_loading_takes_the_weights_and_the_largest_once_more(int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is dequantised as a whole first would need twice its size to start."""
    monkeypatch.setattr("sluice.models.formats.dequantize.AT_ONCE", 64)
    with PeakMemory() as memory:
        model = load(int8, packer=Recorder())
    size, largest = module_bytes(model), 64 * 512
    # The storages of the meta device are counted too, and the largest tensor that is mapped from the file.
    assert memory.peak - size <= size + 2 * largest + largest


W8A8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def with_activations(folder: Path, inputs: dict[str, Any]) -> Path:
    return made.reconfigure(folder, lambda config: config["config_groups"]["group_0"].update(input_activations=inputs))


def test_a_scale_that_is_not_that_of_the_largest_weight_is_kept(int8: Path) -> None:
    """Scales that were found by calibration clip the largest weights, or leave them below 127."""
    made.change(int8, lambda tensors: {name: _halved(name, value) for name, value in tensors.items()})
    packer = Recorder()
    load(int8, dtype="bfloat16", quantization="int8", packer=packer)
    stored = load_file(int8 / made.WEIGHTS)
    down = next(part.weight for part in packer.seen if part.weight.in_features == 512)
    assert int(down.values.abs().max()) <= 64
    assert torch.equal(down.scales, stored["model.layers.0.mlp.down_proj.weight_scale"].float()[:, 0])


def _halved(name: str, value: torch.Tensor) -> torch.Tensor:
    return value // 2 if value.dtype == torch.int8 else value


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, "int8-as-stored"),
        ({"dynamic": False, "strategy": "tensor"}, "none"),
        ({"symmetric": False}, "none"),
        ({"num_bits": 4}, "none"),
    ],
)
def test_what_is_made_for_int8_is_computed_in_it(changes: dict[str, Any], held: str, int8: Path) -> None:
    """Activations of W8A8 have a scale for each row; other kinds are dequantised, as without a fast packer."""
    with_activations(int8, W8A8 | changes)
    packer = Recorder()
    packer.why_not = lambda kind, dtype: None
    assert load(int8, dtype="bfloat16", packer=packer).spec.quantization == held
    assert load(int8, dtype="bfloat16", packer=Packer()).spec.quantization == "none"
    assert load(int8, dtype="float32", packer=Recorder()).spec.quantization == "none"


def test_four_bits_keep_their_numbers_and_groups(tmp_path: Path) -> None:
    """Groups of another size than ours, quantised again, would lose what their makers calibrated."""
    tiny_models.llama(hidden_size=64, intermediate_size=96).save_pretrained(tmp_path / "source")
    scheme = SCHEMES["int4-groups"]
    folder = made.quantized(tmp_path / "source", tmp_path, config_of(*scheme), storing(*scheme))[0]
    packer = Recorder()
    load(folder, dtype="bfloat16", quantization="int4", packer=packer)
    stored = load_file(folder / made.WEIGHTS)
    packed = [value.view(torch.uint8) for name, value in stored.items() if name.endswith("_packed")]
    found = [part.weight for part in packer.seen if isinstance(part.weight, Int4Weight)]
    assert len(found) == len(packed)
    assert {weight.group for weight in found} == {16}
    assert all(any(torch.equal(value, weight.values) for weight in found) for value in packed)
