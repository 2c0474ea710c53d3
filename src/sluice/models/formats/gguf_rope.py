"""The rotary embedding of a GGUF file, as `rope_parameters` of a `config.json`."""

from __future__ import annotations

import math
import struct
from typing import Any

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_fields import ArchitectureFields
from sluice.text.gguf.file import TensorInfo

FREQUENCY_FACTORS = "rope_freqs.weight"
"""The tensor by which Llama 3.1 divides rotary frequencies."""


def rope_parameters(fields: ArchitectureFields, factors: TensorInfo | None) -> dict[str, Any]:
    """Return `rope_parameters`.

    Args:
        factors: the tensor `FREQUENCY_FACTORS`, if there is one.

    Raises:
        CheckpointError: a field is not supported, or contradicts another one.
    """
    theta = fields.number("rope.freq_base", 10_000.0)
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
        return {"rope_type": "factors", "rope_theta": theta, "factors": _pairs(factors, fields.head_dim // 2)}
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    scaling: dict[str, Any] = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = fields.integer("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
        if attention != 1:
            scaling["attention_factor"] = attention * (0.1 * math.log(max(factor, 1.0)) + 1)
    return scaling


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
