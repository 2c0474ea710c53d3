"""The inner loop of both kernels: one block of queries over a run of keys, a tile of them at a time.

Softmax on the fly ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018; tiled as in
FlashAttention-2, Dao, 2023), in powers of two: scores are multiplied by log2(e) once, `exp2` is one instruction.

    begin    inner_begin               inner_end      end
      |--------|--------------------------|------------|
       masked      seen by all queries        masked        every bound but begin and end is a multiple of TILE
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

AS_STORED = tl.constexpr(0)
"""Pages hold what the queries hold, or a type that converts to it."""
E4M3_BITS = tl.constexpr(1)
"""Pages hold float8_e4m3fn, passed as bytes: devices before SM89 have no such type."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The constants that a kernel is compiled for."""

    causal: bool
    block_size: int
    """If causal, a query sees all of its block of so many positions; 1: nothing after itself."""
    has_window: bool
    has_softcap: bool
    need_lse: bool
    kind: int
    """How pages hold elements: AS_STORED or E4M3_BITS."""
    page_size: int
    kv_heads: int
    group: int
    """Query heads of a KV head."""
    head_dim: int
    head_pad: int
    """Head size as a power of two."""
    tile: int
    """Keys at a time; a power of two, at least 16."""


@triton.jit
def matmul(a, b, acc):
    """Return acc + a @ b in float32; float32 operands are not rounded to tf32."""
    if INTERPRETED:
        # The interpreter would multiply the bit patterns of bfloat16.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def widened(x, dtype: tl.constexpr, SPEC: tl.constexpr):
    """Return elements of a page in the dtype to multiply in.

    A float8_e4m3fn is a float16 with three of its ten bits of mantissa and an exponent short of 8: shifted into place,
    subnormals included, it only lacks a factor of 256. NaN has to be told apart.
    """
    if SPEC.kind == E4M3_BITS:
        bits = x.to(tl.int16)
        shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        value = shifted.to(tl.float16, bitcast=True) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), value).to(dtype)
    return x.to(dtype)


@triton.jit
def tanh(x):
    """Return tanh of a float32, without overflow: exp is only taken of numbers below zero."""
    shrunk = tl.exp2(tl.abs(x) * -2.8853900817779268)
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def pages_of_tile(table_row, first, stop, begin, end, MASKED: tl.constexpr, SPEC: tl.constexpr):
    """Return the page ids, int64, of the tile of keys that starts at `first`; from `stop` on they mean nothing.

    If a tile is in one page it is a scalar: one look-up, and consecutive addresses. Otherwise [tile].
    """
    if SPEC.page_size % SPEC.tile == 0:
        pages = tl.load(table_row + first // SPEC.page_size, mask=first < stop, other=0)
    else:
        keys = first + tl.arange(0, SPEC.tile)
        held = keys < stop
        if MASKED:
            held = held & (keys >= begin) & (keys < end)
        pages = tl.load(table_row + keys // SPEC.page_size, mask=held, other=0)
    return pages.to(tl.int64)


@triton.jit
def tiles(
    acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end, start, stop, window,
    k_page_stride, v_page_stride, scale, softcap, MASKED: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """Fold the keys of `start`..`stop` (start a multiple of the tile) into the running state of `walk`."""
    TILE: tl.constexpr = SPEC.tile
    dims = tl.arange(0, SPEC.head_pad)
    held_dims = dims < SPEC.head_dim
    # Page ids go from turn to turn. Looked up in the turn that uses them, Triton would fetch them a tile ahead, too,
    # and keys and values one tile less: none of theirs would be on its way while a tile is computed.
    page = pages_of_tile(table_row, start, stop, begin, end, MASKED, SPEC)
    for first in range(start, stop, TILE):
        keys = first + tl.arange(0, TILE)
        held = (keys >= begin) & (keys < end)
        offsets = keys % SPEC.page_size * (SPEC.kv_heads * SPEC.head_dim)
        k_at = k_head + (page * k_page_stride + offsets)[None, :] + dims[:, None]
        v_at = v_head + (page * v_page_stride + offsets)[:, None] + dims[None, :]
        page = pages_of_tile(table_row, first + TILE, stop, begin, end, MASKED, SPEC)
        # What a mask holds back may be NaN, and 0 x NaN is NaN.
        if MASKED:
            k = tl.load(k_at, mask=held[None, :] & held_dims[:, None], other=0.0)
            v = tl.load(v_at, mask=held[:, None] & held_dims[None, :], other=0.0)
        elif SPEC.head_pad != SPEC.head_dim:
            k = tl.load(k_at, mask=held_dims[:, None], other=0.0)
            v = tl.load(v_at, mask=held_dims[None, :], other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        nothing = tl.zeros([q.shape[0], TILE], tl.float32)
        scores = matmul(q, widened(k, q.dtype, SPEC), nothing) * scale
        if SPEC.has_softcap:
            scores = tanh(scores) * softcap
        if MASKED:
            seen = held[None, :]
            if SPEC.causal:
                seen = seen & (keys[None, :] <= q_pos[:, None])
            if SPEC.has_window:
                seen = seen & (keys[None, :] > q_pos[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A query that has seen nothing yet: -inf - -inf would be NaN, so any finite reference does.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - reference)
        weights = tl.exp2(scores - reference[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = matmul(weights.to(q.dtype), widened(v, q.dtype, SPEC), acc * shrink[:, None])
        peak = higher
    return acc, peak, total


@triton.jit
def walk(
    q, q_pos, k_head, v_head, table_row, begin, end, inner_begin, inner_end, window,
    k_page_stride, v_page_stride, scale, softcap, SPEC: tl.constexpr,
):  # fmt: skip
    """Attention of a block of queries over the keys `begin`..`end` of one row and one KV head.

    Args:
        q: [M, head_pad], zero beyond the head size.
        q_pos: [M] positions of the queries in the row.
        k_head, v_head: pointers to the KV head's first element of page 0.
        table_row: pointer to the row's page ids, int32.
        begin, end: no other key is read.
        inner_begin, inner_end: multiples of the tile; keys between them are seen by every query.
        scale: factor of q.k: log2(e) included without a soft cap, divided by the cap with one.
        softcap: the cap times log2(e).

    Returns:
        acc [M, head_pad], the weighted sum of values; peak [M], the largest score (base 2; -inf: nothing seen);
        total [M], the sum of weights. All float32.
    """
    M: tl.constexpr = q.shape[0]
    HEAD_PAD: tl.constexpr = SPEC.head_pad
    acc = tl.zeros([M, HEAD_PAD], tl.float32)
    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    # tl.static_range would unroll; three plain loops keep masks out of the long one.
    if SPEC.has_window:
        acc, peak, total = tiles(
            acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
            begin // SPEC.tile * SPEC.tile, tl.minimum(inner_begin, end), window,
            k_page_stride, v_page_stride, scale, softcap, True, SPEC,
        )  # fmt: skip
    acc, peak, total = tiles(
        acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
        inner_begin, inner_end, window, k_page_stride, v_page_stride, scale, softcap, False, SPEC,
    )  # fmt: skip
    acc, peak, total = tiles(
        acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
        tl.maximum(inner_begin, inner_end), end, window, k_page_stride, v_page_stride, scale, softcap, True, SPEC,
    )  # fmt: skip
    return acc, peak, total


@triton.jit
def load_queries(q, index, heads, held, q_stride, q_head_stride, SPEC: tl.constexpr):
    """Return queries [M, head_pad] of tokens `index` (one or [M]) and heads [M], zero where they are not `held`."""
    dims = tl.arange(0, SPEC.head_pad)
    at = q + (index * q_stride + heads * q_head_stride)[:, None] + dims[None, :]
    return tl.load(at, mask=held[:, None] & (dims < SPEC.head_dim)[None, :], other=0.0)


@triton.jit
def store_heads(
    out, lse, places, held, acc, peak, total, v_scale, IS_PART: tl.constexpr, SPEC: tl.constexpr
):  # fmt: skip
    """Store what `walk` returned for heads at `places` [M] of `out` [..., head_dim] and `lse` [...].

    Args:
        IS_PART: the result is of some keys only, and is merged by its log-sum-exp.
    """
    dims = tl.arange(0, SPEC.head_pad)
    result = acc * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    at = out + places[:, None] * SPEC.head_dim + dims[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=held[:, None] & (dims < SPEC.head_dim)[None, :])
    if IS_PART or SPEC.need_lse:
        tl.store(lse + places, natural_lse(peak, total), mask=held)


@triton.jit
def natural_lse(peak, total):
    """Return the log-sum-exp, natural log; -inf where nothing was seen."""
    is_empty = total == 0.0
    return tl.where(is_empty, float("-inf"), (peak + tl.log2(tl.where(is_empty, 1.0, total))) * 0.6931471805599453)
