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


class DeviceRows(NamedTuple):
    """A `StateTable` on the device."""

    rows: torch.Tensor
    """[B, 8] int32"""
    exports: torch.Tensor
    """[at least 1, 2] int32"""


@triton.jit
def places_of(rows_ptr, row):
    """Return slot, anchor, start, end and new anchor of a row, and its first token of the step."""
    fields = rows_ptr + row * 8
    slot, anchor, start = tl.load(fields).to(tl.int64), tl.load(fields + 1), tl.load(fields + 2)
    return slot, anchor, start, tl.load(fields + 3), tl.load(fields + 4), tl.load(fields + 5)


@triton.jit
def _export(exports_ptr, records_ptr, record_stride, rows_ptr, row, position, places, state, mask):
    """Copy the state behind a position to the records that the row makes there."""
    export = exports_ptr + 2 * tl.load(rows_ptr + row * 8 + 6)
    for _ in range(tl.load(rows_ptr + row * 8 + 7)):
        record = tl.load(export + 1).to(tl.int64) * record_stride
        tl.store(records_ptr + record + places, state, mask=mask & (tl.load(export) == position))
        export += 2


@triton.jit
def _rows_of(old_ptr, old_row, old_stride, new_ptr, new_row, new_stride, column, is_old, is_new, inside):
    """Return rows [T, C] of which some are in the tail and others in an input."""
    old = tl.load(old_ptr + old_row[:, None] * old_stride + column, mask=is_old[:, None] & inside, other=0.0)
    new = tl.load(new_ptr + new_row[:, None] * new_stride + column, mask=is_new[:, None] & inside, other=0.0)
    return old + new.to(tl.float32)


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
def _recur(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    out_ptr,
    s_ptr,
    k_tail_ptr,
    u_tail_ptr,
    g_tail_ptr,
    records_ptr,
    rows_ptr,
    exports_ptr,
    q_stride,
    k_stride,
    v_stride,
    s_stride,
    k_tail_stride,
    u_tail_stride,
    g_tail_stride,
    record_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAKES_TURNS: tl.constexpr,
    IS_DELTA: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    key_head = head % KEY_HEADS if TAKES_TURNS else head // (VALUE_HEADS // KEY_HEADS)
    slot, anchor, start, stop, new_anchor, first = places_of(rows_ptr, row)
    j, d = tl.arange(0, TOKENS), tl.arange(0, KEYS)
    c = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = (d < KEY_DIM)[None, :], (c < VALUE_DIM)[None, :]
    key, value = key_head * KEY_DIM + d[None, :], head * VALUE_DIM + c[None, :]
    places = head * KEY_DIM * VALUE_DIM + d[:, None] * VALUE_DIM + c[None, :]
    in_state = (d < KEY_DIM)[:, None] & in_value
    k_tail, u_tail = k_tail_ptr + slot * k_tail_stride, u_tail_ptr + slot * u_tail_stride
    g_tail = g_tail_ptr + slot * g_tail_stride + head
    state = tl.load(s_ptr + slot * s_stride + places, mask=in_state, other=0.0)
    begin = anchor
    while begin < stop:
        position = begin + j
        is_known, is_new = position < start, (position >= start) & (position < stop)
        token, held = (first + position - start).to(tl.int64), (position - anchor).to(tl.int64)
        k = _rows_of(k_tail, held, KEY_HEADS * KEY_DIM, k_ptr, token, k_stride, key, is_known, is_new, in_key)
        v = tl.load(v_ptr + token[:, None] * v_stride + value, mask=is_new[:, None] & in_value, other=0.0)
        held_u = u_tail + held[:, None] * (VALUE_HEADS * VALUE_DIM) + value
        u = tl.load(held_u, mask=is_known[:, None] & in_value, other=0.0)
        # The decays of tokens alone are kept, so that this sum over the whole block has one order.
        g = tl.load(g_tail + held * VALUE_HEADS, mask=is_known, other=0.0)
        g = tl.cumsum(g + tl.load(g_ptr + token * VALUE_HEADS + head, mask=is_new, other=0.0), 0)
        decay = tl.exp(g)[:, None]
        between = tl.exp(tl.where(j[:, None] >= j[None, :], g[:, None] - g[None, :], float("-inf")))
        if IS_DELTA:
            beta = tl.load(beta_ptr + token * VALUE_HEADS + head, mask=is_new, other=0.0)[:, None]
            from_state = beta * (v.to(tl.float32) - decay * tl.dot(k, state, input_precision="tf32x3"))
            factors = beta * between * tl.dot(k, tl.trans(k), input_precision="tf32x3")
            u = _solved(u, from_state, factors, j, tl.maximum(start - begin, 0), tl.minimum(stop - begin, TOKENS))
        else:
            u += v.to(tl.float32)
        q = tl.load(q_ptr + token[:, None] * q_stride + key, mask=is_new[:, None] & in_key, other=0.0).to(tl.float32)
        products = between * tl.dot(q, tl.trans(k), input_precision="tf32x3")
        out = decay * tl.dot(q, state, input_precision="tf32x3") + tl.dot(products, u, input_precision="tf32x3")
        to = out_ptr + token[:, None] * (VALUE_HEADS * VALUE_DIM) + value
        tl.store(to, out, mask=is_new[:, None] & in_value)
        tl.debug_barrier()
        if begin >= new_anchor:
            kept = (position - new_anchor).to(tl.int64)[:, None] * (VALUE_HEADS * VALUE_DIM) + value
            tl.store(u_tail + kept, u, mask=(position < stop)[:, None] & in_value)
        begin += TOKENS
        if (begin <= new_anchor) | (begin < stop):
            last = tl.sum(tl.where(j == TOKENS - 1, g, 0.0), 0)
            # Read once more: the registers are full.
            k = _rows_of(k_tail, held, KEY_HEADS * KEY_DIM, k_ptr, token, k_stride, key, is_known, is_new, in_key)
            k *= tl.exp(last - g)[:, None]
            state = tl.exp(last) * state + tl.dot(tl.trans(k), u, input_precision="tf32x3")
            if begin == new_anchor:
                tl.store(s_ptr + slot * s_stride + places, state, mask=in_state)
            _export(exports_ptr, records_ptr, record_stride, rows_ptr, row, begin, places, state, in_state)


@triton.jit
def _keep(
    k_ptr,
    g_ptr,
    k_tail_ptr,
    g_tail_ptr,
    rows_ptr,
    k_stride,
    k_tail_stride,
    g_tail_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    slot, anchor, start, stop, new_anchor, first = places_of(rows_ptr, row)
    j, d = tl.arange(0, TOKENS), tl.arange(0, KEYS)
    key, in_key = head * KEY_DIM + d[None, :], (d < KEY_DIM)[None, :] & (head < KEY_HEADS)
    one = tl.zeros((1, 1), tl.int32)
    k_tail = k_tail_ptr + slot * k_tail_stride
    g_tail = g_tail_ptr + slot * g_tail_stride + head
    begin = new_anchor
    while begin < stop:
        position = begin + j
        is_known, is_new, is_there = position < start, (position >= start) & (position < stop), position < stop
        token, held = (first + position - start).to(tl.int64), (position - anchor).to(tl.int64)
        kept = (position - new_anchor).to(tl.int64)[:, None]
        k = _rows_of(k_tail, held, KEY_HEADS * KEY_DIM, k_ptr, token, k_stride, key, is_known, is_new, in_key)
        g = _rows_of(g_tail, held, VALUE_HEADS, g_ptr + head, token, VALUE_HEADS, one, is_known, is_new, one == 0)
        # All threads have read their part of these rows, and of those before.
        tl.debug_barrier()
        tl.store(k_tail + kept * (KEY_HEADS * KEY_DIM) + key, k, mask=is_there[:, None] & in_key)
        tl.store(g_tail + kept * VALUE_HEADS + one, g, mask=is_there[:, None])
        tl.debug_barrier()
        begin += TOKENS


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
    keys = max(16, triton.next_power_of_2(key_dim))
    tails = state.k.stride(0), state.u.stride(0), state.g.stride(0)
    _recur[(count, value_heads, triton.cdiv(value_dim, COLUMNS))](
        q,
        k,
        v,
        g,
        g if beta is None else beta,
        out,
        state.s,
        state.k,
        state.u,
        state.g,
        state.records,
        rows.rows,
        rows.exports,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        state.s.stride(0),
        *tails,
        state.records.stride(0),
        KEY_HEADS=key_heads,
        VALUE_HEADS=value_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        TAKES_TURNS=state.takes_turns,
        IS_DELTA=beta is not None,
        TOKENS=state.block,
        KEYS=keys,
        COLUMNS=COLUMNS,
        num_warps=8,
    )
    _keep[(count, value_heads)](
        k,
        g,
        state.k,
        state.g,
        rows.rows,
        k.stride(0),
        tails[0],
        tails[2],
        KEY_HEADS=key_heads,
        VALUE_HEADS=value_heads,
        KEY_DIM=key_dim,
        TOKENS=state.block,
        KEYS=keys,
    )
    return out
