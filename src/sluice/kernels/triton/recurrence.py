"""The recurrence of layers with a state (`models/recurrence.py` defines it), one launch for prompts and decodes alike.

A program computes some columns of one value head of a row, a block of 64 tokens at a time, whichever of them are new.
All products so have the same shape, and a token's bits depend neither on cuts nor on the batch. What the tail holds of
k and of the decays is read by several programs, so a second launch moves it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.state_rows import DeviceRows, export_at, exports_of, row_of, token_of

COLUMNS = 32
"""Of value_dim, for a program."""
MAX_KEY_DIM = 256
"""k and q of a block are kept in registers."""


class HeadStates(NamedTuple):
    """A `LayerState` without its columns."""

    s: torch.Tensor
    k: torch.Tensor
    u: torch.Tensor
    g: torch.Tensor
    records: torch.Tensor
    block: int
    takes_turns: bool


class _Tokens(NamedTuple):
    """Inputs and output of a launch."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    out: torch.Tensor
    q_stride: int
    k_stride: int
    v_stride: int


class _Slots(NamedTuple):
    """Tensors of `HeadStates` with their strides."""

    s: torch.Tensor
    k: torch.Tensor
    u: torch.Tensor
    g: torch.Tensor
    records: torch.Tensor
    s_stride: int
    k_stride: int
    u_stride: int
    g_stride: int
    record_stride: int


class _Sizes(NamedTuple):
    """What kernels are compiled for."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tokens: int
    """Of a block."""
    keys: int
    """`key_dim` or more, a power of two."""


class _Part(NamedTuple):
    """A value head in a kernel, and the columns of rows that a program has of it and of its key head."""

    head: tl.tensor
    key: tl.tensor
    value: tl.tensor
    in_key: tl.tensor
    in_value: tl.tensor


class _Tail(NamedTuple):
    """Pointers to the tail of one slot."""

    k: tl.tensor
    u: tl.tensor
    g: tl.tensor


class _Block(NamedTuple):
    """Tokens of a row in a kernel, [T] each."""

    position: tl.tensor
    token: tl.tensor
    """Where new ones are in the step."""
    held: tl.tensor
    """Where known ones are in the tail."""
    is_known: tl.tensor
    is_new: tl.tensor


class _Decays(NamedTuple):
    """Decays of a block in a kernel."""

    g: tl.tensor
    """[T], their logarithms up to each token."""
    decay: tl.tensor
    """[T, 1]"""
    between: tl.tensor
    """[T, T], from the token of a column to that of a row; 0 if it comes later."""


@triton.jit
def _export(rows, number, slots, position, places, s, mask):
    """Copy the state behind a position to the records that the row with a number makes there."""
    export, count = exports_of(rows, number)
    for _ in range(count):
        at, record, export = export_at(export, slots.record_stride)
        tl.store(slots.records + record + places, s, mask=mask & (at == position))


@triton.jit
def _block_of(row, begin, TOKENS: tl.constexpr):
    """Return the `_Block` that begins at a position."""
    position = begin + tl.arange(0, TOKENS)
    is_known, is_new = position < row.start, (position >= row.start) & (position < row.stop)
    return _Block(position, token_of(row, position), (position - row.anchor).to(tl.int64), is_known, is_new)


@triton.jit
def _rows_of(old_ptr, old_stride, new_ptr, new_stride, column, block, inside):
    """Return rows [T, C] of a block, of which some are in the tail and others in an input."""
    is_old, is_new = block.is_known[:, None] & inside, block.is_new[:, None] & inside
    old = tl.load(old_ptr + block.held[:, None] * old_stride + column, mask=is_old, other=0.0)
    new = tl.load(new_ptr + block.token[:, None] * new_stride + column, mask=is_new, other=0.0)
    return old + new.to(tl.float32)


@triton.jit
def _keys_of(tokens, tail, part, block, sizes: tl.constexpr):
    """Return k [T, KEYS] of a block."""
    stride: tl.constexpr = sizes.key_heads * sizes.key_dim
    return _rows_of(tail.k, stride, tokens.k, tokens.k_stride, part.key, block, part.in_key)


@triton.jit
def _decays_of(tokens, tail, part, block, sizes: tl.constexpr):
    # The decays of tokens alone are kept, so that this sum over the whole block has one order.
    g = tl.load(tail.g + block.held * sizes.value_heads, mask=block.is_known, other=0.0)
    new = tl.load(tokens.g + block.token * sizes.value_heads + part.head, mask=block.is_new, other=0.0)
    g = tl.cumsum(g + new, 0)
    j = tl.arange(0, sizes.tokens)
    between = tl.exp(tl.where(j[:, None] >= j[None, :], g[:, None] - g[None, :], float("-inf")))
    return _Decays(g, tl.exp(g)[:, None], between)


@triton.jit
def _solved(u, from_state, factors, j, known, count):
    """Return u with the rows `known` to `count - 1` of a delta net, each of which needs those before."""
    t = known
    while t < count:
        is_own = (j == t)[:, None]
        factor = tl.sum(tl.where(is_own, factors, 0.0), 0)
        # Those of tokens from t on are still zero.
        earlier = tl.sum(factor[:, None] * u, 0)
        own = tl.sum(tl.where(is_own, from_state, 0.0), 0)
        u = tl.where(is_own, (own - earlier)[None, :], u)
        t += 1
    return u


@triton.jit
def _updates(tokens, tail, row, part, block, begin, s, k, decays, sizes: tl.constexpr, IS_DELTA: tl.constexpr):
    """Return u [T, C] of a block, of which the tail has the rows of known tokens."""
    mask = block.is_new[:, None] & part.in_value
    v = tl.load(tokens.v + block.token[:, None] * tokens.v_stride + part.value, mask=mask, other=0.0)
    held = tail.u + block.held[:, None] * (sizes.value_heads * sizes.value_dim) + part.value
    u = tl.load(held, mask=block.is_known[:, None] & part.in_value, other=0.0)
    if IS_DELTA:
        beta = tl.load(tokens.beta + block.token * sizes.value_heads + part.head, mask=block.is_new, other=0.0)
        beta = beta[:, None]
        from_state = beta * (v.to(tl.float32) - decays.decay * tl.dot(k, s, input_precision="tf32x3"))
        factors = beta * decays.between * tl.dot(k, tl.trans(k), input_precision="tf32x3")
        known, count = tl.maximum(row.start - begin, 0), tl.minimum(row.stop - begin, sizes.tokens)
        u = _solved(u, from_state, factors, tl.arange(0, sizes.tokens), known, count)
    else:
        u += v.to(tl.float32)
    return u


@triton.jit
def _store_out(tokens, part, block, s, k, u, decays, sizes: tl.constexpr):
    """Compute and store the output of new tokens of a block."""
    in_key, in_value = block.is_new[:, None] & part.in_key, block.is_new[:, None] & part.in_value
    q = tl.load(tokens.q + block.token[:, None] * tokens.q_stride + part.key, mask=in_key, other=0.0).to(tl.float32)
    products = decays.between * tl.dot(q, tl.trans(k), input_precision="tf32x3")
    out = decays.decay * tl.dot(q, s, input_precision="tf32x3") + tl.dot(products, u, input_precision="tf32x3")
    to = tokens.out + block.token[:, None] * (sizes.value_heads * sizes.value_dim) + part.value
    tl.store(to, out, mask=in_value)


@triton.jit
def _state_behind(tokens, tail, part, block, s, u, g, sizes: tl.constexpr):
    """Return the state behind a whole block, given that before it."""
    last = tl.sum(tl.where(tl.arange(0, sizes.tokens) == sizes.tokens - 1, g, 0.0), 0)
    # Read once more: the registers are full.
    k = _keys_of(tokens, tail, part, block, sizes)
    k *= tl.exp(last - g)[:, None]
    return tl.exp(last) * s + tl.dot(tl.trans(k), u, input_precision="tf32x3")


@triton.jit
def _recur(
    tokens,
    slots,
    rows,
    sizes: tl.constexpr,
    TAKES_TURNS: tl.constexpr,
    IS_DELTA: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, head = row_of(rows, tl.program_id(0)), tl.program_id(1)
    key_head = head % sizes.key_heads if TAKES_TURNS else head // (sizes.value_heads // sizes.key_heads)
    d, c = tl.arange(0, sizes.keys), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    key, value = key_head * sizes.key_dim + d[None, :], head * sizes.value_dim + c[None, :]
    part = _Part(head, key, value, (d < sizes.key_dim)[None, :], (c < sizes.value_dim)[None, :])
    places = head * sizes.key_dim * sizes.value_dim + d[:, None] * sizes.value_dim + c[None, :]
    in_state = (d < sizes.key_dim)[:, None] & part.in_value
    k_tail, u_tail = slots.k + row.slot * slots.k_stride, slots.u + row.slot * slots.u_stride
    tail = _Tail(k_tail, u_tail, slots.g + row.slot * slots.g_stride + head)
    s = tl.load(slots.s + row.slot * slots.s_stride + places, mask=in_state, other=0.0)
    begin = row.anchor
    while begin < row.stop:
        block = _block_of(row, begin, sizes.tokens)
        k = _keys_of(tokens, tail, part, block, sizes)
        decays = _decays_of(tokens, tail, part, block, sizes)
        u = _updates(tokens, tail, row, part, block, begin, s, k, decays, sizes, IS_DELTA)
        _store_out(tokens, part, block, s, k, u, decays, sizes)
        tl.debug_barrier()
        if begin >= row.new_anchor:
            kept = (block.position - row.new_anchor).to(tl.int64)[:, None] * (sizes.value_heads * sizes.value_dim)
            tl.store(tail.u + kept + value, u, mask=(block.position < row.stop)[:, None] & part.in_value)
        begin += sizes.tokens
        if (begin <= row.new_anchor) | (begin < row.stop):
            s = _state_behind(tokens, tail, part, block, s, u, decays.g, sizes)
            if begin == row.new_anchor:
                tl.store(slots.s + row.slot * slots.s_stride + places, s, mask=in_state)
            _export(rows, tl.program_id(0), slots, begin, places, s, in_state)


@triton.jit
def _keep(tokens, slots, rows, sizes: tl.constexpr):
    row, head = row_of(rows, tl.program_id(0)), tl.program_id(1)
    d = tl.arange(0, sizes.keys)
    key, in_key = head * sizes.key_dim + d[None, :], (d < sizes.key_dim)[None, :] & (head < sizes.key_heads)
    one = tl.zeros((1, 1), tl.int32)
    k_tail, g_tail = slots.k + row.slot * slots.k_stride, slots.g + row.slot * slots.g_stride + head
    k_width: tl.constexpr = sizes.key_heads * sizes.key_dim
    begin = row.new_anchor
    while begin < row.stop:
        block = _block_of(row, begin, sizes.tokens)
        is_there, kept = block.position < row.stop, (block.position - row.new_anchor).to(tl.int64)[:, None]
        k = _rows_of(k_tail, k_width, tokens.k, tokens.k_stride, key, block, in_key)
        g = _rows_of(g_tail, sizes.value_heads, tokens.g + head, sizes.value_heads, one, block, one == 0)
        # All threads have read their part of these rows, and of those before.
        tl.debug_barrier()
        tl.store(k_tail + kept * k_width + key, k, mask=is_there[:, None] & in_key)
        tl.store(g_tail + kept * sizes.value_heads + one, g, mask=is_there[:, None])
        tl.debug_barrier()
        begin += sizes.tokens


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor | None,
    state: HeadStates,
    rows: DeviceRows,
) -> torch.Tensor:
    """Compute the recurrence of `Ops.recurrence`, and update the state.

    Args:
        q, k, v: as there; heads lie one behind the other.
        g, beta: float32 without gaps.
        rows: of the step.
    """
    (_, key_heads, key_dim), (_, value_heads, value_dim), count = k.shape, v.shape, len(rows.rows)
    out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    strides = (each.stride(0) for each in (q, k, v))
    tokens = _Tokens(q, k, v, g, g if beta is None else beta, out, *strides)
    tensors = state.s, state.k, state.u, state.g, state.records
    slots = _Slots(*tensors, *(each.stride(0) for each in tensors))
    keys = max(16, triton.next_power_of_2(key_dim))
    sizes = _Sizes(key_heads, value_heads, key_dim, value_dim, state.block, keys)
    _recur[(count, value_heads, triton.cdiv(value_dim, COLUMNS))](
        tokens,
        slots,
        rows,
        sizes,
        TAKES_TURNS=state.takes_turns,
        IS_DELTA=beta is not None,
        COLUMNS=COLUMNS,
        num_warps=8,
    )
    _keep[(count, value_heads)](tokens, slots, rows, sizes)
    return out
