"""Tiny checkpoints of quantised weights, made of a plain one, and the plain checkpoint that each must equal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
LAYERS = (
    *("_proj", "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"),
    *("in_proj_qkv", "in_proj_z", ".w1", ".w2", ".w3"),
)
"""How names of layers with matrices end."""
Tensors = dict[str, torch.Tensor]
Stored = tuple[Tensors, torch.Tensor]
"""The parts of a quantised weight by their names behind the last dot, and the weight that they stand for."""


def quantized(
    source: Path,
    folder: Path,
    config: Mapping[str, Any],
    store: Callable[[torch.Tensor], Stored],
    keep: tuple[str, ...] = (),
) -> tuple[Path, Path]:
    """Write a checkpoint with quantised weights, and one with the plain weights that they stand for.

    Args:
        source: a plain checkpoint.
        folder: gets both, in folders of their own.
        config: `quantization_config`.
        store: quantises one weight.
        keep: modules whose weights stay plain.

    Returns:
        The quantised one and the plain one; their other weights are in bfloat16.
    """
    stored, plain = {}, {}
    for name, value in load_file(source / WEIGHTS).items():
        module = name.removesuffix(".weight")
        if not module.endswith(LAYERS) or module in keep:
            stored[name] = plain[name] = value.bfloat16()
            continue
        parts, plain[name] = store(value)
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    written = []
    for kind, tensors, changes in (("quantized", stored, {"quantization_config": config}), ("plain", plain, {})):
        target = folder / kind
        shutil.copytree(source, target)
        save_file(tensors, target / WEIGHTS)
        settings = json.loads((target / "config.json").read_text()) | {"dtype": "bfloat16"} | changes
        (target / "config.json").write_text(json.dumps(settings))
        written.append(target)
    return written[0], written[1]


def change(folder: Path, edit: Callable[[Tensors], Tensors]) -> Path:
    """Change the tensors of a checkpoint in place; returns the folder."""
    tensors = {name: value.clone() for name, value in load_file(folder / WEIGHTS).items()}
    save_file(edit(tensors), folder / WEIGHTS)
    return folder


def reconfigure(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Change the `quantization_config` of a checkpoint in place; returns the folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config["quantization_config"])
    path.write_text(json.dumps(config))
    return folder
