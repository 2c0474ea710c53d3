"""The rotary embedding of a GGUF file, as `rope_parameters` of a `config.json`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_fields import ArchitectureFields
from sluice.text.gguf.file import TensorInfo

FREQUENCY_FACTORS = "rope_freqs.weight"
"""The tensor by which Llama 3.1 divides rotary frequencies."""
LONG_FACTORS: Mapping[str, str] = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
"""The tensors by which Phi divides them, in short texts and in long ones."""


def rope_parameters(fields: ArchitectureFields, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Return `rope_parameters`.

    Args:
        tensors: of the file, by name.

    Raises:
        CheckpointError: a field is not supported, or contradicts another one.
    """
    theta, factors = fields.number("rope.freq_base", 10_000.0), tensors.get(FREQUENCY_FACTORS)
    if any(name in tensors for name in LONG_FACTORS.values()):
        return _longrope(fields, tensors, theta)
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    kind = fields.text("rope.scaling.type", "linear")  # so llama.cpp scales, too
    if kind not in ("none", "linear", "yarn"):
        raise fields.error("rope.scaling.type", "none, linear or yarn")
    if kind == "linear" and factor == 1:
        kind = "none"
    attention = fields.number("rope.scaling.attn_factor", 1.0)
    if attention != 1 and kind != "yarn":
        raise fields.error("rope.scaling.attn_factor", "1 without yarn")
    if factors is not None:
        if kind != "none":
            raise fields.error("rope.scaling.type", f"none beside {FREQUENCY_FACTORS}")
        return {"rope_type": "factors", "rope_theta": theta, "factors": _pairs(factors, fields.full_head_dim // 2)}
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    scaling: dict[str, Any] = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = fields.integer("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
        if attention != 1:
            scaling["attention_factor"] = attention * (0.1 * math.log(max(factor, 1.0)) + 1)
    return scaling


def _longrope(fields: ArchitectureFields, tensors: Mapping[str, TensorInfo], theta: float) -> dict[str, Any]:
    count = fields.integer("rope.dimension_count", fields.head_dim) // 2
    parameters: dict[str, Any] = {"rope_type": "longrope", "rope_theta": theta}
    for name, tensor in LONG_FACTORS.items():
        if tensor not in tensors:
            raise CheckpointError(f"the file lacks the tensor {tensor}, although it has the other factors")
        parameters[name] = _pairs(tensors[tensor], count)
    parameters["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
    if attention := fields.number("rope.scaling.attn_factor", 0.0):
        parameters["attention_factor"] = attention
    return parameters


def _pairs(tensor: TensorInfo, count: int) -> list[float]:
    """Return the values of the tensor, one for each pair of a head."""
    if tensor.shape != (count,):
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} must have {count} values, one for each pair of a head, got the shape"
            f" {list(tensor.shape)}"
        )
    if tensor.kind.name != "F32":
        raise CheckpointError(f"{tensor.file}: tensor {tensor.name} must be of type F32, got {tensor.kind.name}")
    return list(struct.unpack_from(f"<{count}f", tensor.data, tensor.start))
