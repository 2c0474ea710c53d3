"""Attention of rows with many queries: a block of queries against the keys that it sees.

The rows of a block are query tokens times the heads of one group, so that a KV head's keys serve all of them. Blocks
are numbered through all rows with room to spare: row r starts at block `q_starts[r] // TOKENS + r`, which is never less
than the blocks of the rows before it. So the grid is known from the number of tokens and rows, and each program finds
its row by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sluice.attention.triton.call import AttentionCall
from sluice.attention.triton.tiles import ExtendTiles
from sluice.attention.triton.walk import natural_lse, walk


@triton.jit
def row_of_block(q_starts, block, first_row, rows, TOKENS: tl.constexpr):
    """The last row whose first block is not after `block`; rows are counted from `first_row`."""
    origin = tl.load(q_starts + first_row)
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        start = tl.load(q_starts + first_row + middle) - origin
        is_before = start // TOKENS + middle <= block
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    start = tl.load(q_starts + first_row + low)
    return low + first_row, start, block - (start - origin) // TOKENS - low


@triton.jit(
    do_not_specialize=["first_row", "rows", "table_stride", "window"],
    do_not_specialize_on_alignment=["page_table", "q_starts", "kv_lens"],
)
def _extend(
    q,
    k_pages,
    v_pages,
    out,
    lse,
    page_table,
    q_starts,
    kv_lens,
    first_row,
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
):
    """One program a block of queries and a KV head."""
    TOKENS: tl.constexpr = BLOCK // GROUP
    # Late blocks see most keys: begun first, they do not end last.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row, q_start, row_block = row_of_block(q_starts, block, first_row, rows, TOKENS)
    q_len = tl.load(q_starts + row + 1) - q_start
    first_token = row_block * TOKENS
    if first_token >= q_len:
        return
    kv_len = tl.load(kv_lens + row)

    places = tl.arange(0, BLOCK)
    tokens = first_token + places // GROUP
    heads = kv_head * GROUP + places % GROUP
    held = (places < TOKENS * GROUP) & (tokens < q_len)
    dims = tl.arange(0, HEAD_PAD)
    held_elements = held[:, None] & (dims < HEAD_DIM)[None, :]
    index = (q_start + tokens).to(tl.int64)
    q_at = q + (index * q_stride + heads * q_head_stride)[:, None] + dims[None, :]
    block_q = tl.load(q_at, mask=held_elements, other=0.0)

    first = kv_len - q_len + first_token
    last = kv_len - q_len + tl.minimum(first_token + TOKENS, q_len) - 1
    begin = 0
    inner_begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first - window + 1, 0)
        inner_begin = (tl.maximum(last - window + 1, 0) + TILE - 1) // TILE * TILE
    end = kv_len
    inner_end = kv_len // TILE * TILE
    if CAUSAL:
        end = tl.maximum(last + 1, 0)
        inner_end = tl.maximum(first + 1, 0) // TILE * TILE

    acc, peak, total = walk(
        block_q,
        kv_len - q_len + tokens,
        k_pages + kv_head * HEAD_DIM,
        v_pages + kv_head * HEAD_DIM,
        page_table + row.to(tl.int64) * table_stride,
        begin,
        end,
        inner_begin,
        inner_end,
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
    places_out = index * (KV_HEADS * GROUP) + heads
    tl.store(out + places_out[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=held_elements)
    if NEED_LSE:
        tl.store(lse + places_out, natural_lse(peak, total), mask=held)


def extend(call: AttentionCall, tiles: ExtendTiles) -> None:
    """Fill `out` and `lse` of the rows after the decodes."""
    batch = call.batch
    first_row = batch.num_decodes
    rows = len(batch.q_lens) - first_row
    if not rows:
        return
    head_dim = call.q.shape[2]
    kv_heads = call.k.shape[2]
    block = max(tiles.block, triton.next_power_of_2(call.group))
    tokens = call.q.shape[0] - first_row
    grid = (tokens // (block // call.group) + rows, kv_heads)
    _extend[grid](
        call.q,
        call.k,
        call.v,
        call.out,
        call.lse,
        batch.page_table,
        batch.q_starts,
        batch.kv_lens,
        first_row,
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
        BLOCK=block,
        TILE=tiles.tile,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
