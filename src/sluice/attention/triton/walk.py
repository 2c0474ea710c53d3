"""The inner loop of both kernels: one block of queries over a run of keys, a tile of them at a time.

Softmax on the fly ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018; tiled as in
FlashAttention-2, Dao, 2023), in powers of two: scores are multiplied by log2(e) once, `exp2` is one instruction.

    begin    inner_begin               inner_end      end
      |--------|--------------------------|------------|
       masked      seen by all queries        masked        every bound but begin and end is a multiple of TILE
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

AS_STORED = tl.constexpr(0)
"""Pages hold what the queries hold, or a type that converts to it."""
E4M3_BITS = tl.constexpr(1)
"""Pages hold float8_e4m3fn, passed as bytes: devices before SM89 have no such type."""


@triton.jit
def matmul(a, b, acc):
    """acc + a @ b in float32; float32 operands are not rounded to tf32."""
    if INTERPRETED:
        # The interpreter would multiply the bit patterns of bfloat16.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def widened(x, dtype: tl.constexpr, KIND: tl.constexpr):
    """Elements of a page in the dtype to multiply in.

    A float8_e4m3fn is a float16 with three of its ten bits of mantissa and an exponent short of 8: shifted into place,
    subnormals included, it only lacks a factor of 256. NaN has to be told apart.
    """
    if KIND == E4M3_BITS:
        bits = x.to(tl.int16)
        shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        value = shifted.to(tl.float16, bitcast=True) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), value).to(dtype)
    return x.to(dtype)


@triton.jit
def tanh(x):
    """Of a float32, without overflow: exp is only taken of what is below zero."""
    shrunk = tl.exp2(tl.abs(x) * -2.8853900817779268)
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def pages_of_tile(
    table_row,
    first,
    stop,
    begin,
    end,
    MASKED: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Page ids, int64, of the tile of keys that starts at `first`; of no meaning from `stop` on.

    If a tile lies in one page it is a scalar: one look-up, and addresses in a row. Else [TILE].
    """
    if PAGE_SIZE % TILE == 0:
        pages = tl.load(table_row + first // PAGE_SIZE, mask=first < stop, other=0)
    else:
        keys = first + tl.arange(0, TILE)
        held = keys < stop
        if MASKED:
            held = held & (keys >= begin) & (keys < end)
        pages = tl.load(table_row + keys // PAGE_SIZE, mask=held, other=0)
    return pages.to(tl.int64)


@triton.jit
def tiles(
    acc,
    peak,
    total,
    q,
    q_pos,
    k_head,
    v_head,
    table_row,
    begin,
    end,
    start,
    stop,
    window,
    k_page_stride,
    v_page_stride,
    scale,
    softcap,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    KIND: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Fold the keys of `start`..`stop` (start a multiple of TILE) into the running state. See `walk`."""
    dims = tl.arange(0, HEAD_PAD)
    held_dims = dims < HEAD_DIM
    # Page ids go from turn to turn. Looked up in the turn that uses them, Triton would fetch them a tile ahead, too,
    # and keys and values one tile less: none of theirs would be on its way while a tile is computed.
    page = pages_of_tile(table_row, start, stop, begin, end, MASKED, PAGE_SIZE, TILE)
    for first in range(start, stop, TILE):
        keys = first + tl.arange(0, TILE)
        held = (keys >= begin) & (keys < end)
        offsets = keys % PAGE_SIZE * (KV_HEADS * HEAD_DIM)
        k_at = k_head + (page * k_page_stride + offsets)[None, :] + dims[:, None]
        v_at = v_head + (page * v_page_stride + offsets)[:, None] + dims[None, :]
        page = pages_of_tile(table_row, first + TILE, stop, begin, end, MASKED, PAGE_SIZE, TILE)
        # What a mask holds back may be NaN, and 0 x NaN is NaN.
        if MASKED:
            k = tl.load(k_at, mask=held[None, :] & held_dims[:, None], other=0.0)
            v = tl.load(v_at, mask=held[:, None] & held_dims[None, :], other=0.0)
        elif HEAD_PAD != HEAD_DIM:
            k = tl.load(k_at, mask=held_dims[:, None], other=0.0)
            v = tl.load(v_at, mask=held_dims[None, :], other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        nothing = tl.zeros([q.shape[0], TILE], tl.float32)
        scores = matmul(q, widened(k, q.dtype, KIND), nothing) * scale
        if HAS_SOFTCAP:
            scores = tanh(scores) * softcap
        if MASKED:
            seen = held[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= q_pos[:, None])
            if HAS_WINDOW:
                seen = seen & (keys[None, :] > q_pos[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A query that has seen nothing yet: -inf - -inf would be NaN, so any finite reference does.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - reference)
        weights = tl.exp2(scores - reference[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = matmul(weights.to(q.dtype), widened(v, q.dtype, KIND), acc * shrink[:, None])
        peak = higher
    return acc, peak, total


@triton.jit
def walk(
    q,
    q_pos,
    k_head,
    v_head,
    table_row,
    begin,
    end,
    inner_begin,
    inner_end,
    window,
    k_page_stride,
    v_page_stride,
    scale,
    softcap,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    KIND: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attention of a block of queries over the keys `begin`..`end` of one row and one KV head.

    Args:
        q: [M, HEAD_PAD], zero beyond HEAD_DIM.
        q_pos: [M] positions of the queries in the row.
        k_head, v_head: pointers to the KV head's first element of page 0.
        table_row: pointer to the row's page ids, int32.
        begin, end: no other key is read.
        inner_begin, inner_end: multiples of TILE; keys between them are seen by every query.
        scale: what q.k is multiplied by: log2(e) included without a soft cap, divided by the cap with one.
        softcap: the cap times log2(e).

    Returns:
        acc [M, HEAD_PAD], the weighted sum of values; peak [M], the largest score (base 2; -inf: nothing seen);
        total [M], the sum of weights. All float32.
    """
    M: tl.constexpr = q.shape[0]
    acc = tl.zeros([M, HEAD_PAD], tl.float32)
    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    # tl.static_range would unroll; three plain loops keep masks out of the long one.
    if HAS_WINDOW:
        acc, peak, total = tiles(
            acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
            begin // TILE * TILE, tl.minimum(inner_begin, end), window, k_page_stride, v_page_stride, scale, softcap,
            True, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, KIND, PAGE_SIZE, KV_HEADS, HEAD_DIM, HEAD_PAD, TILE,
        )  # fmt: skip
    acc, peak, total = tiles(
        acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
        inner_begin, inner_end, window, k_page_stride, v_page_stride, scale, softcap,
        False, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, KIND, PAGE_SIZE, KV_HEADS, HEAD_DIM, HEAD_PAD, TILE,
    )  # fmt: skip
    acc, peak, total = tiles(
        acc, peak, total, q, q_pos, k_head, v_head, table_row, begin, end,
        tl.maximum(inner_begin, inner_end), end, window, k_page_stride, v_page_stride, scale, softcap,
        True, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, KIND, PAGE_SIZE, KV_HEADS, HEAD_DIM, HEAD_PAD, TILE,
    )  # fmt: skip
    return acc, peak, total


@triton.jit
def natural_lse(peak, total):
    """The log-sum-exp, natural log; -inf where nothing was seen."""
    is_empty = total == 0.0
    return tl.where(is_empty, float("-inf"), (peak + tl.log2(tl.where(is_empty, 1.0, total))) * 0.6931471805599453)
