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

from sluice.attention.triton.call import TritonCall
from sluice.attention.triton.tiles import Arch, DecodeTiles
from sluice.attention.triton.walk import load_queries, natural_lse, store_heads, walk

PIECES_AT_ONCE = 16
"""Merged by one program in one go."""


@triton.jit
def pieces_of_rows(
    kv_lens, rows, window, aim, MIN_TILES: tl.constexpr, ROWS: tl.constexpr, SPEC: tl.constexpr
):  # fmt: skip
    """Return how the batch is cut.

    Args:
        aim: pieces of all rows together, give or take one a row.
        ROWS: a power of two, at least `rows`.

    Returns:
        indices [ROWS]; of each row its tiles [ROWS] and pieces [ROWS].
    """
    indices = tl.arange(0, ROWS)
    lengths = tl.load(kv_lens + indices, mask=indices < rows, other=0)
    count = (lengths + SPEC.tile - 1) // SPEC.tile
    if SPEC.has_window:
        count -= tl.maximum(lengths - window, 0) // SPEC.tile
    size = tl.maximum((tl.sum(count, 0) + aim - 1) // aim, MIN_TILES)
    return indices, count, (count + size - 1) // size


@triton.jit
def piece_of_item(
    item, kv_lens, rows, window, aim, MIN_TILES: tl.constexpr, ROWS: tl.constexpr, SPEC: tl.constexpr
):  # fmt: skip
    """Return a program's row, the number of its piece there, the row's pieces (0: no work), and tiles of a piece."""
    indices, count, pieces = pieces_of_rows(kv_lens, rows, window, aim, MIN_TILES, ROWS, SPEC)
    row = tl.sum((tl.cumsum(pieces, 0) <= item).to(tl.int32), 0)
    piece = item - tl.sum(tl.where(indices < row, pieces, 0), 0)
    of_row = tl.sum(tl.where(indices == row, pieces, 0), 0)
    # Pieces of about one length: none is left with the last tile alone.
    size = (tl.sum(tl.where(indices == row, count, 0), 0) + of_row - 1) // tl.maximum(of_row, 1)
    return row, piece, of_row, size


@triton.jit(
    do_not_specialize=["rows", "table_stride", "window", "aim"],
    do_not_specialize_on_alignment=["page_table", "kv_lens"],
)
def _decode(
    q, k_pages, v_pages, out, lse, part_out, part_lse, page_table, kv_lens, rows, table_stride,
    q_stride, q_head_stride, k_page_stride, v_page_stride, scale, v_scale, softcap, window, aim,
    BLOCK: tl.constexpr, MIN_TILES: tl.constexpr, ROWS: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """One program a piece and a KV head."""
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    row, piece, of_row, size = piece_of_item(item, kv_lens, rows, window, aim, MIN_TILES, ROWS, SPEC)
    if of_row == 0:
        return
    kv_len = tl.load(kv_lens + row)
    index = row.to(tl.int64)
    heads = kv_head * SPEC.group + tl.arange(0, BLOCK)
    held = tl.arange(0, BLOCK) < SPEC.group
    seen_from = 0
    if SPEC.has_window:
        seen_from = tl.maximum(kv_len - window, 0)
    first = (seen_from // SPEC.tile + piece * size) * SPEC.tile
    begin = tl.maximum(first, seen_from)
    end = tl.minimum(first + size * SPEC.tile, kv_len)
    acc, peak, total = walk(
        load_queries(q, index, heads, held, q_stride, q_head_stride, SPEC),
        tl.zeros([BLOCK], tl.int32) + (kv_len - 1),
        k_pages + kv_head * SPEC.head_dim,
        v_pages + kv_head * SPEC.head_dim,
        page_table + index * table_stride,
        begin,
        end,
        (begin + SPEC.tile - 1) // SPEC.tile * SPEC.tile,
        end // SPEC.tile * SPEC.tile,
        window,
        k_page_stride,
        v_page_stride,
        scale,
        softcap,
        SPEC,
    )
    num_heads = SPEC.kv_heads * SPEC.group
    if of_row == 1:
        store_heads(out, lse, index * num_heads + heads, held, acc, peak, total, v_scale, False, SPEC)
    else:
        places = item.to(tl.int64) * num_heads + heads
        store_heads(part_out, part_lse, places, held, acc, peak, total, v_scale, True, SPEC)


@triton.jit(do_not_specialize=["rows", "window", "aim"], do_not_specialize_on_alignment=["kv_lens"])
def _reduce(
    out, lse, part_out, part_lse, kv_lens, rows, window, aim,
    MIN_TILES: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """One program a row and a head."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    num_heads = SPEC.kv_heads * SPEC.group
    indices, _, pieces = pieces_of_rows(kv_lens, rows, window, aim, MIN_TILES, ROWS, SPEC)
    count = tl.sum(tl.where(indices == row, pieces, 0), 0)
    if count == 1:
        return
    origin = tl.sum(tl.where(indices < row, pieces, 0), 0).to(tl.int64)
    HEAD_PAD: tl.constexpr = SPEC.head_pad
    dims = tl.arange(0, HEAD_PAD)
    held_dims = dims < SPEC.head_dim
    acc = tl.zeros([HEAD_PAD], tl.float32)
    # Merged from nothing: the first piece sets the scale.
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, count, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        held = at < count
        places = (origin + at) * num_heads + head
        parts_lse = tl.load(part_lse + places, mask=held, other=float("-inf")) * 1.4426950408889634
        parts = tl.load(
            part_out + places[:, None] * SPEC.head_dim + dims[None, :],
            mask=held[:, None] & held_dims[None, :],
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(parts_lse, 0))
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - reference)
        weights = tl.exp2(parts_lse - reference)
        acc = acc * shrink + tl.sum(parts * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        peak = higher
    place = row.to(tl.int64) * num_heads + head
    result = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * SPEC.head_dim + dims, result.to(out.dtype.element_ty), mask=held_dims)
    if SPEC.need_lse:
        tl.store(lse + place, natural_lse(peak, total))


def decode(call: TritonCall, tiles: DecodeTiles, arch: Arch) -> None:
    """Compute the rows that decode, which come first, into `out` and `lse`."""
    batch = call.batch
    rows = batch.num_decodes
    if not rows:
        return
    spec = call.kernel_spec(tiles.tile)
    window, heads = call.spec.window or 0, call.q.shape[1]
    aim = max(1, tiles.programs_per_sm * arch.num_sms // spec.kv_heads)
    items = aim + rows
    part_out = torch.empty((items, heads, spec.head_dim), dtype=torch.float32, device=call.q.device)
    part_lse = torch.empty((items, heads), dtype=torch.float32, device=call.q.device)
    rows_pad = max(16, triton.next_power_of_2(rows))
    _decode[(items, spec.kv_heads)](
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
        *call.strides,
        call.score_scale,
        call.v_scale,
        call.score_cap,
        window,
        aim,
        BLOCK=max(16, triton.next_power_of_2(spec.group)),
        MIN_TILES=tiles.min_tiles,
        ROWS=rows_pad,
        SPEC=spec,
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
        window,
        aim,
        MIN_TILES=tiles.min_tiles,
        ROWS=rows_pad,
        AT_ONCE=PIECES_AT_ONCE,
        SPEC=spec,
        num_warps=1 if spec.head_dim <= 128 else 2,
    )
