"""Reads adapters from GGUF files, as llama.cpp converts them from PEFT's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from sluice.models.adapters.adapter import AdapterError, own_names, parts_by_path
from sluice.models.adapters.stored import StoredAdapter, StoredMatrix, StoredPair
from sluice.models.checkpoint import CheckpointError
from sluice.models.decoder import Decoder
from sluice.models.formats.gguf_file import GGUFTensor
from sluice.models.formats.gguf_weights import layer_names, order_of
from sluice.models.registry import ARCHITECTURES
from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.file import GGUFFile, TensorInfo
from sluice.text.gguf.metadata import Metadata

ALPHA, INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
ENDS = (".weight.lora_a", ".weight.lora_b")


def read_gguf_adapter(path: Path, model: Decoder) -> StoredAdapter:
    """Read an adapter in a GGUF file.

    Raises:
        AdapterError: the file is broken, no adapter, of another architecture, or has a tensor of no layer of the model
            that adapters may change.
    """
    try:
        file = GGUFFile(path)
        alpha = _alpha(file.metadata, model)
        pairs = _pairs(file.tensors, model)
    except (GGUFError, CheckpointError) as error:
        raise AdapterError(str(error)) from None
    scales = {layer: alpha / _rank(pair) if alpha else 1.0 for layer, pair in pairs.items()}
    return StoredAdapter(path.name, hashlib.sha256(file.data).hexdigest(), alpha, pairs, scales, {})


def _alpha(metadata: Metadata, model: Decoder) -> float:
    """Return the alpha of a file for this model; 0, or none, does not scale."""
    wanted = ARCHITECTURES[model.spec.architecture].gguf
    for key, value in (("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", wanted)):
        if metadata.text(key) != value:
            raise metadata.error(key, repr(value))
    if INVOCATION in metadata:
        raise AdapterError(f"{metadata.source}: {INVOCATION} is not supported: the adapter is to begin inside a prompt")
    alpha = metadata.get(ALPHA, 0.0)
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 <= alpha < math.inf:
        raise metadata.error(ALPHA, "a number of at least 0")
    return float(alpha)


def _pairs(tensors: Mapping[str, TensorInfo], model: Decoder) -> dict[str, StoredPair]:
    known = layer_names(model, parts_by_path(model.config))
    found: dict[str, StoredPair] = {}
    for name, info in tensors.items():
        end = next((end for end in ENDS if name.endswith(end)), None)
        layer = None if end is None else known.get(name.removesuffix(end))
        if end is None or layer is None:
            layers = ", ".join(own_names(known))
            raise AdapterError(
                f"{info.file}: tensor {name} is no matrix of a layer of {model.spec.architecture} that adapters may"
                f" change: {layers}"
            )
        order = order_of(f"{layer}.weight", info.shape[0], model) if end == ENDS[1] else None
        value = GGUFTensor(info).dequantized(torch.float32, order)
        found.setdefault(layer, StoredPair()).put(StoredMatrix(name, value), is_a=end == ENDS[0])
    return found


def _rank(pair: StoredPair) -> int:
    """Return the rank by which alpha is divided; the matrices are checked later."""
    return max(1, pair.b.value.shape[-1] if pair.b is not None else 1)
