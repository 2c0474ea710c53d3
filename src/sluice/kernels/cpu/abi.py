"""The structures of `abi.h` for ctypes. Pointers are addresses, strides count elements."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from enum import IntEnum

VERSION = 18
"""Version of the structures and their meaning, as in `abi.h`."""


CODES: Mapping[str | None, int] = {None: 0, "silu": 1, "swish": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 3}
"""Numbers in `abi.h` of the activations that kernels apply, by the names of `models.ops.ACTIVATIONS`."""


class AttentionCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "out", "lse", "k", "v", "page_table", "q_starts", "kv_lens")),
        *((name, c_int64) for name in ("q_stride", "table_stride")),
        *((name, c_int32) for name in ("rows", "heads", "kv_heads", "head_dim", "page_size")),
        *((name, c_int32) for name in ("is_bf16", "is_int8", "causal", "window", "block_size")),
        *((name, c_float) for name in ("scale", "softcap", "v_scale")),
    )


class NormCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "delta", "weight", "bias", "out")),
        *((name, c_int64) for name in ("x_stride", "delta_stride")),
        *((name, c_int32) for name in ("rows", "size", "is_bf16")),
        ("eps", c_float),
    )


class RotateStoreCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "cos", "sin", "q_weight", "k_weight", "k_offset", "slots")),
        *((name, c_void_p) for name in ("k_pages", "v_pages")),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, c_int32) for name in ("tokens", "heads", "kv_heads", "head_dim", "page_size", "is_bf16", "is_int8")),
        *((name, c_float) for name in ("q_eps", "k_eps")),
    )


class SiluMulCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("gate", "up", "out")),
        *((name, c_int64) for name in ("gate_stride", "up_stride")),
        *((name, c_int32) for name in ("rows", "size", "is_bf16")),
    )


class PackedLinearCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "scales", "sums", "minimums", "bias", "y")),
        *((name, c_int64) for name in ("x_stride", "y_stride")),
        *((name, c_int32) for name in ("rows", "in_features", "out_features", "activation", "is_gated")),
        *((name, c_int32) for name in ("group", "scale_type", "is_float_y", "is_one_order")),
        *((name, c_float) for name in ("alpha", "limit")),
    )


class PackBlocksCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "order", "packed")),
        *((name, c_int64) for name in ("rows", "stride")),
        *((name, c_int32) for name in ("type", "out_features", "in_features", "is_mapped")),
    )


class GroupedPart(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("type", c_int32), ("out_features", c_int32))


class GroupedLinearCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "parts", "bias", "y")),
        *((name, c_int64) for name in ("x_stride", "y_stride")),
        *((name, c_int32) for name in ("rows", "in_features", "count", "activation", "is_gated", "is_float_y")),
        *((name, c_float) for name in ("alpha", "limit")),
    )


class RouteCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "select_bias", "ids", "weights")),
        *((name, c_int32) for name in ("rows", "experts", "choices", "score", "is_renormed")),
        *((name, c_float) for name in ("eps", "scale")),
    )


class ExpertsCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "ids", "weights", "y", "up", "down")),
        ("x_stride", c_int64),
        *((name, c_int32) for name in ("rows", "choices", "experts", "in_features", "inner")),
        *((name, c_int32) for name in ("up_is_grouped", "down_is_grouped")),
    )


class EmbedRowsCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "order", "ids", "out")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("type", "count", "in_features")),
    )


class LoraCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "slots", "a", "b", "ranks", "scales", "outputs", "y", "gated")),
        *((name, c_int64) for name in ("x_stride", "y_stride", "b_stride")),
        *((name, c_int32) for name in ("rows", "in_features", "out_features", "parts", "max_rank", "activation")),
        ("is_float_y", c_int32),
    )


class CausalConvCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "bias", "out", "columns", "anchor_columns", "records")),
        *((name, c_void_p) for name in ("rows", "exports")),
        *((name, c_int64) for name in ("x_stride", "columns_stride", "anchor_stride", "record_stride")),
        *((name, c_int32) for name in ("count", "tokens", "channels", "taps", "ring", "activation", "is_bf16")),
    )


class RecurrenceCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "g", "beta", "steps", "rates", "decay_rates", "step_bias")),
        *(
            (name, c_void_p)
            for name in ("skip", "out", "s", "k_tail", "u_tail", "g_tail", "records", "rows", "exports")
        ),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride", "steps_stride", "rates_stride")),
        *((name, c_int64) for name in ("s_stride", "k_tail_stride", "u_tail_stride", "g_tail_stride", "record_stride")),
        *((name, c_int32) for name in ("count", "tokens", "key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, c_int32) for name in ("takes_turns", "is_bf16", "is_bf16_v", "is_bf16_steps")),
        *((name, c_float) for name in ("length_eps", "q_scale", "least_step", "most_step")),
    )


class GatedNormCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "gate", "weight", "out")),
        *((name, c_int64) for name in ("gate_stride", "weight_stride")),
        *((name, c_int32) for name in ("rows", "groups", "size", "is_bf16", "gates_first")),
        ("eps", c_float),
    )


class MaskCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "rows", "bits")),
        *((name, c_int64) for name in ("stride", "minus_inf")),
        *((name, c_int32) for name in ("count", "vocab", "words", "size")),
    )


class PageBoundsCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("bounds", "q", "upper")),
        *((name, c_int32) for name in ("pages", "kv_heads", "queries", "head_dim", "is_bf16")),
    )


class ReadPartsCall(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("descriptor", "offsets", "expected", "k", "v")),
        ("part_bytes", c_int64),
        *((name, c_int32) for name in ("count", "part")),
        ("found", c_uint32),
        ("error", c_int32),
    )


class ReadOutcome(IntEnum):
    """How a `ReadPartsCall` ended."""

    ALL_READ = 0
    DIFFERENT = 1
    """A part is not what was stored."""
    FILE_ENDED = 2
    READ_FAILED = 3


class Operation(IntEnum):
    """The operation of a `ListedCall`."""

    ATTENTION = 0
    NORM = 1
    ROTATE_STORE = 2
    SILU_MUL = 3
    PACKED_LINEAR = 4
    GROUPED_LINEAR = 5
    EMBED_ROWS = 6
    EXPERTS = 7
    ROUTE = 8
    LORA = 9
    CAUSAL_CONV = 10
    RECURRENCE = 11
    GATED_NORM = 12


class ListedCall(ctypes.Structure):
    _fields_ = (("operation", c_int32), ("call", c_void_p))
