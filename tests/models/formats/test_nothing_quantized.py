"""Sections of `quantization_config` that quantise no weights: the checkpoint is a plain one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models
from models.formats.loading import assert_same, load, refusal

KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
OF_OUTPUTS = {"targets": ["re:.*k_proj", "re:.*v_proj"], "weights": None, "output_activations": KV_SCHEME}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "dense"}
Save = Callable[[dict[str, Any]], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes a plain checkpoint with a section and the scales of keys and values."""

    def write(section: dict[str, Any]) -> Path:
        folder = tiny_models.save("llama", tmp_path)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
        scales = {f"model.layers.0.self_attn.{name}": torch.tensor(0.5) for name in ("k_scale", "v_scale")}
        scales["model.layers.0.self_attn.k_proj.output_scale"] = torch.tensor(0.5)
        save_file(load_file(folder / "model.safetensors") | scales, folder / "model.safetensors")
        return folder

    return write


@pytest.mark.parametrize(
    "section",
    [
        COMPRESSED | {"config_groups": {}, "kv_cache_scheme": KV_SCHEME},
        COMPRESSED | {"config_groups": None, "kv_cache_scheme": KV_SCHEME},
        COMPRESSED | {"kv_cache_scheme": KV_SCHEME},
        COMPRESSED | {"config_groups": {}, "kv_cache_scheme": None},
        COMPRESSED | {"config_groups": {}, "sparsity_config": {"format": "dense"}},
        COMPRESSED | {"config_groups": {"group_0": OF_OUTPUTS}},
        {"quant_method": None},
        {"quant_method": None, "kv_cache_scheme": KV_SCHEME},
        {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": False},
        {"quant_method": "bitsandbytes", "load_in_8bit": None, "bnb_4bit_quant_type": "nf4"},
    ],
)
def test_a_section_without_weights_loads_as_plain(section: dict[str, Any], save: Save, tmp_path: Path) -> None:
    model = load(save(section))
    assert model.spec.stored_as is None
    (tmp_path / "plain").mkdir()
    assert_same(model, load(tiny_models.save("llama", tmp_path / "plain")))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes' is not supported"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quant_method 'bitsandbytes' is not supported"),
        ({"bits": 4}, "quant_method is missing"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights are not supported"),
        (COMPRESSED | {"transform_config": {"config_groups": {"r": {}}}}, "transformed weights are not supported"),
    ],
)
def test_a_section_that_changes_weights_is_refused(section: dict[str, Any], message: str, save: Save) -> None:
    assert message in refusal(save(section))
