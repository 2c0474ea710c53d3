"""Attention of rows with many queries: a block of queries against the keys that it sees.

The rows of a block are query tokens times the heads of one group, so that a KV head's keys serve all of them. Blocks
are numbered through all rows with room to spare: row r starts at block `q_starts[r] // TOKENS + r`, which is never less
than the blocks of the rows before it. So the grid is known from the number of tokens and rows, and each program finds
its row by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sluice.attention.triton.call import TritonCall
from sluice.attention.triton.tiles import ExtendTiles
from sluice.attention.triton.walk import load_queries, store_heads, walk


@triton.jit
def row_of_block(q_starts, block, first_row, rows, TOKENS: tl.constexpr):
    """Return the last row whose first block is not after `block`, where its queries start, and the block's number."""
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


@triton.jit
def end_of_block(position, SPEC: tl.constexpr):
    """Return the position behind the block in which a position is; 0 or less before the first one."""
    return tl.where(position < 0, position + 1, (position // SPEC.block_size + 1) * SPEC.block_size)


@triton.jit(
    do_not_specialize=["first_row", "rows", "table_stride", "window"],
    do_not_specialize_on_alignment=["page_table", "q_starts", "kv_lens"],
)
def _extend(
    q, k_pages, v_pages, out, lse, page_table, q_starts, kv_lens, first_row, rows, table_stride,
    q_stride, q_head_stride, k_page_stride, v_page_stride, scale, v_scale, softcap, window,
    BLOCK: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """One program a block of queries and a KV head."""
    TOKENS: tl.constexpr = BLOCK // SPEC.group
    # Late blocks see most keys: begun first, they do not end last.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row, q_start, row_block = row_of_block(q_starts, block, first_row, rows, TOKENS)
    q_len = tl.load(q_starts + row + 1) - q_start
    first_token = row_block * TOKENS
    if first_token >= q_len:
        return
    kv_len = tl.load(kv_lens + row)

    block_rows = tl.arange(0, BLOCK)
    tokens = first_token + block_rows // SPEC.group
    heads = kv_head * SPEC.group + block_rows % SPEC.group
    held = (block_rows < TOKENS * SPEC.group) & (tokens < q_len)
    index = (q_start + tokens).to(tl.int64)

    first = kv_len - q_len + first_token
    last = kv_len - q_len + tl.minimum(first_token + TOKENS, q_len) - 1
    begin = 0
    inner_begin = 0
    if SPEC.has_window:
        begin = tl.maximum(first - window + 1, 0)
        inner_begin = (tl.maximum(last - window + 1, 0) + SPEC.tile - 1) // SPEC.tile * SPEC.tile
    end = kv_len
    inner_end = kv_len // SPEC.tile * SPEC.tile
    q_pos = kv_len - q_len + tokens
    if SPEC.causal:
        if SPEC.block_size > 1:
            first = end_of_block(first, SPEC) - 1
            last = tl.minimum(end_of_block(last, SPEC), kv_len) - 1
            q_pos = end_of_block(q_pos, SPEC) - 1
        end = tl.maximum(last + 1, 0)
        inner_end = tl.minimum(tl.maximum(first + 1, 0), end) // SPEC.tile * SPEC.tile

    acc, peak, total = walk(
        load_queries(q, index, heads, held, q_stride, q_head_stride, SPEC),
        q_pos,
        k_pages + kv_head * SPEC.head_dim,
        v_pages + kv_head * SPEC.head_dim,
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
        SPEC,
    )
    places = index * (SPEC.kv_heads * SPEC.group) + heads
    store_heads(out, lse, places, held, acc, peak, total, v_scale, False, SPEC)


def extend(call: TritonCall, tiles: ExtendTiles) -> None:
    """Compute the rows after the decodes into `out` and `lse`."""
    batch = call.batch
    first_row = batch.num_decodes
    rows = len(batch.q_lens) - first_row
    if not rows:
        return
    spec = call.kernel_spec(tiles.tile)
    block = max(tiles.block, triton.next_power_of_2(spec.group))
    tokens = call.q.shape[0] - first_row
    _extend[(tokens // (block // spec.group) + rows, spec.kv_heads)](
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
        *call.strides,
        call.score_scale,
        call.v_scale,
        call.score_cap,
        call.spec.window or 0,
        BLOCK=block,
        SPEC=spec,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
