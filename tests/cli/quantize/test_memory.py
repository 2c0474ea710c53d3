"""The memory of quantising: models are quantised, and served in int8, on machines that cannot hold them in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_models
from compiled import library
from peak_memory import PeakMemory
from slow import products
from sluice.cli.quantize.schemes import SCHEMES
from sluice.cli.quantize.source import PlainCheckpoint
from sluice.cli.quantize.write import write_quantized
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker

SMALL = 24 << 10
"""Bytes of a slice that is quantised, of scales, norms and the like."""


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of several files, in which no layer is larger than the embedding; slices are as small for it."""
    for module in ("quantized", "block_quantizers"):
        monkeypatch.setattr(f"sluice.models.{module}.AT_ONCE", 512)
    sizes = {"hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1024}
    tiny_models.llama(**sizes).bfloat16().save_pretrained(tmp_path / "plain", max_shard_size="200KB")
    assert len(list((tmp_path / "plain").glob("*.safetensors"))) == 7
    return tmp_path / "plain"


def largest(folder: Path) -> int:
    return max(value.nbytes for path in folder.glob("*.safetensors") for value in load_file(path).values())


def written(source: Path, target: Path, scheme: str) -> Path:
    write_quantized(PlainCheckpoint(source), target, SCHEMES[scheme], progress=False)
    return target


@pytest.mark.parametrize("scheme", SCHEMES)
def test_writing_takes_the_largest_tensor(scheme: str, plain: Path, tmp_path: Path) -> None:
    """A file that is collected in memory before it is written."""
    with PeakMemory() as memory:
        written(plain, tmp_path / "out", scheme)
    assert memory.peak <= largest(plain) + SMALL


@products(scheme=[*SCHEMES], is_written=[False, True])
def test_loading_takes_the_quantised_size_and_the_largest_tensor(
    scheme: str, is_written: bool, plain: Path, tmp_path: Path
) -> None:
    """A plain model that is quantised when it is whole; a tensor that is kept while layers are packed."""
    folder = written(plain, tmp_path / "out", scheme) if is_written else plain
    packer = NativePacker(Kernels(library(), library().best(), 1))
    with PeakMemory() as memory:
        model, _ = load_model(
            folder,
            dtype="bfloat16",
            device=torch.device("cpu"),
            progress=False,
            quantization=scheme,
            packer=packer,
        )
    # Of four bits, the scales of 32 inputs take two bytes more until they are packed.
    wide_scales = module_bytes(model) // 9 if scheme == "int4" else 0
    assert memory.peak <= module_bytes(model) + wide_scales + largest(folder) + SMALL
