"""Attention of rows with one query: keys cut into pieces, so that every multiprocessor reads some; then a reduction.

How a batch is cut is worked out on the device from its lengths, by every program anew: it costs less than another
kernel, there is no state to keep between layers, and a CUDA graph may be replayed over other lengths. All rows share
one size of piece, so one long context among short ones is cut more often; with W pieces aimed at, a size of the W-th
part of all tiles makes at most W + rows of them, which is the grid.

    kv_lens            [ 300 | 5 | 0 | 90 ]
    tiles of 16 keys   [  19 | 1 | 0 |  6 ]      W = 5, so a piece has at most 6 tiles
    pieces             [   4 | 1 | 0 |  1 ]      of 9 programs a KV head, 6 have work

A row of one piece is written as it is; the pieces of others are merged by their log-sum-exp ("Flash-Decoding", Dao et
al., 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sluice.attention.triton.call import AttentionCall
from sluice.attention.triton.tiles import Arch, DecodeTiles
from sluice.attention.triton.walk import natural_lse, walk

PIECES_AT_ONCE = 16
"""Merged by one program in one go."""


@triton.jit
def pieces_of_rows(
    kv_lens,
    rows,
    window,
    aim,
    HAS_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """How the batch is cut.

    Args:
        aim: pieces of all rows together, give or take one a row.
        ROWS: a power of two, at least `rows`.

    Returns:
        indices [ROWS]; of each row its tiles [ROWS] and pieces [ROWS].
    """
    indices = tl.arange(0, ROWS)
    lengths = tl.load(kv_lens + indices, mask=indices < rows, other=0)
    count = (lengths + TILE - 1) // TILE
    if HAS_WINDOW:
        count -= tl.maximum(lengths - window, 0) // TILE
    size = tl.maximum((tl.sum(count, 0) + aim - 1) // aim, MIN_TILES)
    return indices, count, (count + size - 1) // size


@triton.jit(
    do_not_specialize=["rows", "table_stride", "window", "aim"],
    do_not_specialize_on_alignment=["page_table", "kv_lens"],
)
def _decode(
    q,
    k_pages,
    v_pages,
    out,
    lse,
    part_out,
    part_lse,
    page_table,
    kv_lens,
    rows,
    table_stride,
    q_stride,
    q_head_stride,
    k_page_stride,
    v_page_stride,
    scale,
    v_scale,
    softcap,
    window,
    aim,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    NEED_LSE: tl.constexpr,
    KIND: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program a piece and a KV head."""
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    indices, count, pieces = pieces_of_rows(kv_lens, rows, window, aim, HAS_WINDOW, TILE, MIN_TILES, ROWS)
    if item >= tl.sum(pieces, 0):
        return
    row = tl.sum((tl.cumsum(pieces, 0) <= item).to(tl.int32), 0)
    piece = item - tl.sum(tl.where(indices < row, pieces, 0), 0)
    of_row = tl.sum(tl.where(indices == row, pieces, 0), 0)
    # Pieces of about one length: none is left with the last tile alone.
    size = (tl.sum(tl.where(indices == row, count, 0), 0) + of_row - 1) // of_row
    kv_len = tl.load(kv_lens + row)

    places = tl.arange(0, BLOCK)
    heads = kv_head * GROUP + places
    held = places < GROUP
    dims = tl.arange(0, HEAD_PAD)
    held_elements = held[:, None] & (dims < HEAD_DIM)[None, :]
    index = row.to(tl.int64)
    q_at = q + index * q_stride + (heads * q_head_stride)[:, None] + dims[None, :]
    block_q = tl.load(q_at, mask=held_elements, other=0.0)

    seen_from = 0
    if HAS_WINDOW:
        seen_from = tl.maximum(kv_len - window, 0)
    first = (seen_from // TILE + piece * size) * TILE
    begin = tl.maximum(first, seen_from)
    end = tl.minimum(first + size * TILE, kv_len)
    acc, peak, total = walk(
        block_q,
        tl.zeros([BLOCK], tl.int32) + (kv_len - 1),
        k_pages + kv_head * HEAD_DIM,
        v_pages + kv_head * HEAD_DIM,
        page_table + index * table_stride,
        begin,
        end,
        (begin + TILE - 1) // TILE * TILE,
        end // TILE * TILE,
        window,
        k_page_stride,
        v_page_stride,
        scale,
        softcap,
        CAUSAL,
        HAS_WINDOW,
        HAS_SOFTCAP,
        KIND,
        PAGE_SIZE,
        KV_HEADS,
        HEAD_DIM,
        HEAD_PAD,
        TILE,
    )
    result = acc * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    if of_row == 1:
        places_out = index * (KV_HEADS * GROUP) + heads
        out_at = out + places_out[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=held_elements)
        if NEED_LSE:
            tl.store(lse + places_out, natural_lse(peak, total), mask=held)
    else:
        places_part = item.to(tl.int64) * (KV_HEADS * GROUP) + heads
        tl.store(part_out + places_part[:, None] * HEAD_DIM + dims[None, :], result, mask=held_elements)
        tl.store(part_lse + places_part, natural_lse(peak, total), mask=held)


@triton.jit(do_not_specialize=["rows", "window", "aim"], do_not_specialize_on_alignment=["kv_lens"])
def _reduce(
    out,
    lse,
    part_out,
    part_lse,
    kv_lens,
    rows,
    window,
    aim,
    HAS_WINDOW: tl.constexpr,
    NEED_LSE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program a row and a head."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    indices, _, pieces = pieces_of_rows(kv_lens, rows, window, aim, HAS_WINDOW, TILE, MIN_TILES, ROWS)
    count = tl.sum(tl.where(indices == row, pieces, 0), 0)
    if count == 1:
        return
    origin = tl.sum(tl.where(indices < row, pieces, 0), 0).to(tl.int64)
    dims = tl.arange(0, HEAD_PAD)
    held_dims = dims < HEAD_DIM
    acc = tl.zeros([HEAD_PAD], tl.float32)
    # Merged from nothing: the first piece sets the scale.
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, count, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        held = at < count
        places = (origin + at) * HEADS + head
        parts_lse = tl.load(part_lse + places, mask=held, other=float("-inf")) * 1.4426950408889634
        parts = tl.load(
            part_out + places[:, None] * HEAD_DIM + dims[None, :], mask=held[:, None] & held_dims[None, :], other=0.0
        )
        higher = tl.maximum(peak, tl.max(parts_lse, 0))
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - reference)
        weights = tl.exp2(parts_lse - reference)
        acc = acc * shrink + tl.sum(parts * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        peak = higher
    place = row.to(tl.int64) * HEADS + head
    result = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=held_dims)
    if NEED_LSE:
        tl.store(lse + place, natural_lse(peak, total))


def decode(call: AttentionCall, tiles: DecodeTiles, arch: Arch) -> None:
    """Fill `out` and `lse` of the rows that decode, which are the first."""
    batch = call.batch
    rows = batch.num_decodes
    if not rows:
        return
    _, heads, head_dim = call.q.shape
    kv_heads = call.k.shape[2]
    aim = max(1, tiles.programs_per_sm * arch.num_sms // kv_heads)
    items = aim + rows
    part_out = torch.empty((items, heads, head_dim), dtype=torch.float32, device=call.q.device)
    part_lse = torch.empty((items, heads), dtype=torch.float32, device=call.q.device)
    rows_pad = max(16, triton.next_power_of_2(rows))
    _decode[(items, kv_heads)](
        call.q,
        call.k,
        call.v,
        call.out,
        call.lse,
        part_out,
        part_lse,
        batch.page_table,
        batch.kv_lens,
        rows,
        batch.page_table.stride(0),
        call.q.stride(0),
        call.q.stride(1),
        call.k.stride(0),
        call.v.stride(0),
        call.score_scale,
        call.v_scale,
        call.score_cap,
        call.spec.window or 0,
        aim,
        CAUSAL=call.spec.causal,
        HAS_WINDOW=call.spec.window is not None,
        HAS_SOFTCAP=bool(call.spec.softcap),
        NEED_LSE=call.need_lse,
        KIND=call.kind,
        PAGE_SIZE=call.k.shape[1],
        KV_HEADS=kv_heads,
        GROUP=call.group,
        HEAD_DIM=head_dim,
        HEAD_PAD=call.head_pad,
        BLOCK=max(16, triton.next_power_of_2(call.group)),
        TILE=tiles.tile,
        MIN_TILES=tiles.min_tiles,
        ROWS=rows_pad,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    _reduce[(rows, heads)](
        call.out,
        call.lse,
        part_out,
        part_lse,
        batch.kv_lens,
        rows,
        call.spec.window or 0,
        aim,
        HAS_WINDOW=call.spec.window is not None,
        NEED_LSE=call.need_lse,
        HEADS=heads,
        HEAD_DIM=head_dim,
        HEAD_PAD=call.head_pad,
        TILE=tiles.tile,
        MIN_TILES=tiles.min_tiles,
        ROWS=rows_pad,
        AT_ONCE=PIECES_AT_ONCE,
        num_warps=1 if head_dim <= 128 else 2,
    )
