"""Models whose weights are quantised while they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models
from any_checkpoint import any_checkpoint
from compiled import library
from paged_model import chunked_logits
from sluice.assembly.devices import resolve_here
from sluice.assembly.tiers import page_geometry
from sluice.config import ConfigError, EngineConfig
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels
from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.linear import Packer
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.runner.device_state import DeviceShape

Folder = Callable[[str], Path]
CPU = torch.device("cpu")
NATIVE = NativePacker(Kernels(library(), library().best(), 1))


def loaded(folder: Path, quantization: str, packer: Packer = NATIVE) -> PagedLM:
    model, spec = load_model(
        folder, dtype="bfloat16", device=CPU, progress=False, quantization=quantization, packer=packer
    )
    assert spec.quantization == quantization
    return model


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.15), ("int4", 0.6)])
@pytest.mark.parametrize("family", ["llama", "llama2", "qwen3", "gpt2"])
def test_models_compute_nearly_the_same(family: str, quantization: str, most: float, tiny_folder: Folder) -> None:
    """A layer with the scales of another, a head without scales, or an embedding looked up in the wrong row."""
    folder, prompts = tiny_folder(family), [tiny_models.prompt(30, 0), tiny_models.prompt(5, 1)]
    reference = tiny_models.load_reference(folder, torch.float64)
    exact = [tiny_models.logits(reference, prompt) for prompt in prompts]
    for packer in (NATIVE, Packer()):
        ours = chunked_logits(loaded(folder, quantization, packer), prompts, page_size=4, seed=0)
        for got, wanted in zip(ours, exact, strict=True):
            error = float((got.double() - wanted).norm() / wanted.norm())
            assert 0 < error <= most


def test_weights_take_a_byte_and_are_there_once(tiny_folder: Folder) -> None:
    """Layers that were left out; originals that are kept beside the quantised weights."""
    plain, int8 = (module_bytes(loaded(tiny_folder("qwen3"), name)) for name in ("none", "int8"))
    reference = tiny_models.load_reference(tiny_folder("qwen3"), torch.bfloat16)
    matrices = [weight for name, weight in reference.named_parameters() if weight.dim() == 2]
    scales = sum(8 * (len(weight) + 31) for weight in matrices)
    assert plain - sum(weight.numel() for weight in matrices) <= int8 + 4096
    assert int8 <= plain - sum(weight.numel() for weight in matrices) + scales


def test_layers_of_int4_take_half_a_byte(tmp_path: Path) -> None:
    """Layers that stay in int8 although groups divide their inputs; an embedding or a head of four bits."""
    tiny_models.llama(hidden_size=64, intermediate_size=240, tie_word_embeddings=False).save_pretrained(tmp_path)
    model = loaded(tmp_path, "int4", Packer())
    kinds = {name: type(part).__name__ for name, part in model.named_modules()}
    assert kinds["lm_head"] == "Int8Linear"
    assert [name for name, kind in kinds.items() if kind == "Int8Embedding"] == ["embed_tokens"]
    layer = {name.rpartition("layers.0.")[2]: kind for name, kind in kinds.items() if "layers.0." in name}
    assert {kind for kind in layer.values() if kind.startswith("Int")} == {"Int4Linear", "Int8Linear"}
    assert [name for name, kind in layer.items() if kind == "Int8Linear"] == ["mlp.down_proj"], layer


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_broken_weight_is_named(quantization: str, tiny_folder: Folder, tmp_path: Path) -> None:
    """Noise for every answer, and no word about it."""
    for file in tiny_folder("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name][3, 2] = float("inf")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {name} cannot be quantised: it holds values that are infinite"):
        loaded(tmp_path, quantization)


def test_pages_of_other_weights_are_others() -> None:
    """Pages on a disk that plain weights computed, continued by quantised ones."""
    models = [loaded(any_checkpoint(), name) for name in ("none", "int8", "int4")]
    sizes = {"num_slots": 1, "num_pages": 4, "page_size": 16, "row_pages": 4}
    shape = DeviceShape.of(models[0].spec, CPU, **sizes)
    plain, int8, int4 = (page_geometry(model.spec, shape, "", layout="packed") for model in models)
    assert len({plain, int8, int4}) == 3
    assert int8.code == f"{plain.code}, int8 weights"
    assert int4.code == f"{plain.code}, int4 weights"


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of loading before an error, or an option that is ignored."""
    options = {"quantization": name, "device": "cpu"}
    with pytest.raises(ConfigError, match=f"--quantization {name} computes in bfloat16, got --dtype float32"):
        resolve_here(EngineConfig.from_options(options | {"dtype": "float32"}))
    with pytest.raises(ConfigError, match=r"--quantization.*int4.*int3"):
        EngineConfig.from_options({"quantization": "int3"})
    resolution, _ = resolve_here(EngineConfig.from_options(options))
    assert resolution.config.model.dtype == "bfloat16"
    assert resolution.reasons["dtype"] == f"--quantization {name}"
    monkeypatch.setattr("sluice.assembly.devices.pick_device", lambda *asked: torch.device("cuda", 0))
    monkeypatch.setattr("sluice.assembly.devices.choose_attention", lambda *asked: pytest.fail("it was not refused"))
    with pytest.raises(ConfigError, match=f"--quantization {name} needs --device cpu, got cuda:0"):
        resolve_here(EngineConfig.from_options({"quantization": name}))
