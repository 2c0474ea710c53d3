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
