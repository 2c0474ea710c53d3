"""Reads the sizes of a model off the model itself, built from its config without memory for weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sluice.models.base import CausalLM
from sluice.models.catalog.sizes import ModelSizes, StateBytes
from sluice.models.checkpoint import CheckpointError, Fields, parse_config
from sluice.models.model_class import model_class
from sluice.models.registry import COMPOSITES, is_native

USUAL = "LlamaForCausalLM"
"""The architecture whose layers others are taken to have."""


def read_sizes(path: Path) -> ModelSizes:
    """Return the sizes in the `config.json` of a folder, or in a file like it.

    Raises:
        CheckpointError: it cannot be read, or is not of a model of 16 bits that is supported, or whose layers are as
            Llama's.
    """
    file = path / "config.json" if path.is_dir() else path
    return sizes_of(Fields.read(file), file.parent.resolve().name, file.parent)


def sizes_of(fields: Fields, name: str, folder: Path) -> ModelSizes:
    """Return the sizes in the fields of a `config.json`.

    Args:
        name: of the model.
        folder: as in `parse_config`.

    Raises:
        CheckpointError: as `read_sizes`.
    """
    checkpoint = parse_config(_known(fields), folder)
    if checkpoint.fields.get("quantization_config") is not None:
        raise CheckpointError(f"{fields.source} is of quantised weights, not of those of 16 bits")
    with torch.device("meta"):
        model = model_class(checkpoint.architecture).from_checkpoint(checkpoint, torch.bfloat16)
    return _sizes(model, name)


def _known(fields: Fields) -> Fields:
    """Return a config of a native architecture: of another one, or of none, with Llama's in its place."""
    names = fields.get("architectures")
    if isinstance(names, list) and any(is_native(name) or name in COMPOSITES for name in names):
        return fields
    named = next((name for name in fields if "expert" in name and fields.get(name)), None)
    if named is not None:
        raise CheckpointError(f"{fields.source} is of a mixture of experts ({named}) that is not known")
    return Fields({**fields.values, "architectures": [USUAL]}, fields.source)


def _sizes(model: CausalLM, name: str) -> ModelSizes:
    """Return the sizes of a model on the meta device."""
    spec, table = model.spec, model.spec.vocab_size * model.spec.hidden_size
    tables = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Embedding))
    states = None
    if spec.state is not None:
        slot, record = (spec.num_states * each for each in (spec.state.slot_bytes(1), spec.state.record_bytes))
        states = StateBytes(spec.num_states, len(spec.kv_layers), slot, record)
    return ModelSizes(
        name=name,
        architecture=spec.architecture,
        layers=spec.num_layers,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_model_len=spec.max_model_len,
        stored=sum(weight.numel() for weight in model.parameters() if weight.dim() > 1),
        table=table,
        tied=model.tied,
        kv=sum(2 * layer.num_kv_heads * layer.head_dim for layer in spec.kv_layers),
        lookups=tables - table,
        experts=spec.experts,
        states=states,
    )
