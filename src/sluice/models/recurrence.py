"""The two operations of layers with a recurrent state, in plain torch on any device.

`causal_conv` is a convolution over the last tokens. `recurrence` is a sum over all earlier tokens, which decays. For a
value head with state S [key_dim, value_dim], tokens t of a block of `BLOCK` and g the decay cumulated in the block:

    u_t   = v_t                                                                          (Mamba-2, without beta)
    u_t   = beta_t (v_t - e^g_t S^T k_t) - sum over j < t of beta_t e^(g_t - g_j) (k_t . k_j) u_j    (delta net)
    out_t = e^g_t S^T q_t + sum over j <= t of e^(g_t - g_j) (q_t . k_j) u_j
    S'    = e^g_last S + sum over j of e^(g_last - g_j) k_j u_j^T

This equals the recurrence token by token, S_t = e^g S + k_t u_t^T with u_t = beta_t (v_t - (e^g S)^T k_t), where g is
the decay of the token alone (Gated delta networks: Yang, Kautz and Hatamizadeh, 2024; Mamba-2: Dao and Gu, 2024).

Tokens are computed in the block where they are, filled up to its full length, and one row and block at a time. All
products so have the same shape, and each reads what only earlier tokens of the row have left. Therefore the bits of a
token do not depend on where chunks were cut nor on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch.nn import functional

from sluice.attention.states import BLOCK, LayerState, StateRow, StateSpec, StateStep

LENGTH_EPS = 1e-6
"""Added to the square of the length by which a gated delta net divides q and k."""


class ConvWeights(NamedTuple):
    """What a convolution computes with."""

    weight: torch.Tensor
    """[channels, taps]; the last one is of the token itself"""
    bias: torch.Tensor | None
    """[channels]"""
    activation: str | None
    """"silu" or None"""


def causal_conv(x: torch.Tensor, conv: ConvWeights, step: StateStep) -> torch.Tensor:
    """See `StateOps.causal_conv`."""
    wide = step.state.spec.state_dtype
    taps = conv.weight.to(wide).unbind(1)
    total = torch.zeros(x.shape, dtype=wide, device=x.device)
    for row in step.split():
        columns = _columns(x[row.tokens], step.state, row)
        length = row.end - row.start
        sums = columns[:length].to(wide) * taps[0]
        for i in range(1, len(taps)):
            sums = sums + columns[i : i + length].to(wide) * taps[i]
        total[row.tokens] = sums
    if conv.bias is not None:
        total = total + conv.bias.to(wide)
    if conv.activation is not None:
        assert conv.activation == "silu", f"a convolution with {conv.activation}"
        # Not torch's silu: its last elements on a CPU may have other bits than those before.
        total = total / (1 + torch.exp(-total))
    return total.to(x.dtype)


def _columns(x: torch.Tensor, state: LayerState, row: StateRow) -> torch.Tensor:
    """Return the columns of a row's tokens x, behind the `taps - 1` before them, and keep what later chunks need."""
    before, size = state.spec.taps - 1, state.columns.shape[1]
    # From the first one that is needed: an anchor may be passed that lies before this chunk.
    first = min(row.start, row.anchor + BLOCK) - before if row.new_anchor > row.anchor else row.start - before
    held = state.columns[row.slot, _ring(first, row.start, size, x.device)]
    columns = torch.cat((held, x))
    for position, record in row.exports:
        state.records_columns[record] = columns[position - before - first : position - first]
    if row.new_anchor > row.anchor:
        state.anchor_columns[row.slot] = columns[row.new_anchor - before - first : row.new_anchor - first]
    last = max(row.start, row.end - size)
    state.columns[row.slot, _ring(last, row.end, size, x.device)] = x[last - row.start :]
    return columns[row.start - before - first :]


def _ring(start: int, end: int, size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(start, end, device=device) % size


class Tokens(NamedTuple):
    """Inputs of the recurrence for some tokens. Rows may be strided."""

    q: torch.Tensor
    """[N, key_heads, key_dim], normalised and scaled as the model does"""
    k: torch.Tensor
    """[N, key_heads, key_dim], normalised as the model does"""
    v: torch.Tensor
    """[N, value_heads, value_dim]"""
    g: torch.Tensor
    """[N, value_heads], the logarithm of each token's decay, at most 0, in the state's dtype"""
    beta: torch.Tensor | None
    """[N, value_heads], the rate at which a delta net learns; None: Mamba-2"""

    def part(self, tokens: slice) -> Tokens:
        """Return those of some tokens."""
        beta = None if self.beta is None else self.beta[tokens]
        return Tokens(self.q[tokens], self.k[tokens], self.v[tokens], self.g[tokens], beta)


class DeltaHeads(NamedTuple):
    """Numbers of the heads of a gated delta net, each [value_heads] in the state's dtype."""

    decay_rates: torch.Tensor
    """Below 0."""
    step_bias: torch.Tensor


class DeltaInputs(NamedTuple):
    """What the convolution and the projections of a gated delta net give for some tokens."""

    q: torch.Tensor
    """[N, key_heads, key_dim]"""
    k: torch.Tensor
    v: torch.Tensor
    """[N, value_heads, value_dim]"""
    steps: torch.Tensor
    """[N, value_heads], as `rates`"""
    rates: torch.Tensor

    def tokens(self, heads: DeltaHeads) -> Tokens:
        """Return the inputs of the recurrence."""
        wide = heads.decay_rates.dtype
        q = _of_length_1(self.q.to(wide)) * self.q.shape[-1] ** -0.5
        g = heads.decay_rates * functional.softplus(self.steps.to(wide) + heads.step_bias)
        return Tokens(q, _of_length_1(self.k.to(wide)), self.v, g, torch.sigmoid(self.rates).to(wide))


class Mamba2Heads(NamedTuple):
    """Numbers of the heads of Mamba-2, each [value_heads] in the state's dtype."""

    decay_rates: torch.Tensor
    """Below 0."""
    step_bias: torch.Tensor
    skip: torch.Tensor
    limits: tuple[float, float]
    """Of a step."""


class Mamba2Inputs(NamedTuple):
    """What the convolution and the projection of Mamba-2 give for some tokens. There q is C, k is B and v is x."""

    q: torch.Tensor
    """[N, key_heads, key_dim]"""
    k: torch.Tensor
    v: torch.Tensor
    """[N, value_heads, value_dim]"""
    steps: torch.Tensor
    """[N, value_heads]"""

    def tokens(self, heads: Mamba2Heads) -> Tokens:
        """Return the inputs of the recurrence."""
        wide = heads.decay_rates.dtype
        steps = functional.softplus(self.steps.to(wide) + heads.step_bias).clamp(*heads.limits)
        return Tokens(self.q, self.k, self.v.to(wide) * steps.unsqueeze(-1), steps * heads.decay_rates, None)


def _of_length_1(heads: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + LENGTH_EPS)


def recurrence(tokens: Tokens, step: StateStep) -> torch.Tensor:
    """See `StateOps.recurrence`."""
    out = torch.zeros(tokens.v.shape, dtype=step.state.spec.state_dtype, device=tokens.v.device)
    for row in step.split():
        _walk(tokens.part(row.tokens), step.state, row, out[row.tokens])
    return out


def _walk(tokens: Tokens, state: LayerState, row: StateRow, out: torch.Tensor) -> None:
    """Compute a row from the block of its anchor on, and keep what later chunks need."""
    s = state.s[row.slot].clone()
    for begin in range(row.anchor, row.end, BLOCK):
        known, count = max(0, min(BLOCK, row.start - begin)), min(BLOCK, row.end - begin)
        block = _Block.of(state, row, begin, known)
        if known < count:
            here = slice(begin + known - row.start, begin + count - row.start)
            out[here] = block.append(tokens.part(here), known, count, s)
        if begin >= row.new_anchor:
            block.keep(state, row, begin, count)
        end = begin + BLOCK
        if end <= row.new_anchor or end < row.end:
            s = block.passed(s)
        if end == row.new_anchor:
            state.s[row.slot] = s
        for position, record in row.exports:
            if position == end:
                state.records_s[record] = s


@dataclass(frozen=True, slots=True)
class _Block:
    """What the tokens of a block have put in, and zeros for those not yet computed."""

    spec: StateSpec
    k: torch.Tensor
    """[key_heads, BLOCK, key_dim]"""
    u: torch.Tensor
    """[value_heads, BLOCK, value_dim]"""
    g: torch.Tensor
    """[value_heads, BLOCK]"""

    @classmethod
    def of(cls, state: LayerState, row: StateRow, begin: int, known: int) -> Self:
        """Read the first `known` tokens of the block from the tail."""
        spec = state.spec
        held = slice(begin - row.anchor, begin - row.anchor + known)

        def filled(part: torch.Tensor, *shape: int) -> torch.Tensor:
            full = torch.zeros(shape, dtype=spec.state_dtype, device=part.device)
            full[:, :known] = part[row.slot, held].transpose(0, 1)
            return full

        return cls(
            spec,
            filled(state.k, spec.key_heads, BLOCK, spec.key_dim),
            filled(state.u, spec.value_heads, BLOCK, spec.value_dim),
            filled(state.g, spec.value_heads, BLOCK),
        )

    def keep(self, state: LayerState, row: StateRow, begin: int, count: int) -> None:
        """Write the first `count` tokens to the tail behind the new anchor."""
        there = slice(begin - row.new_anchor, begin - row.new_anchor + count)
        for part, block in (state.k, self.k), (state.u, self.u), (state.g, self.g):
            part[row.slot, there] = block[:, :count].transpose(0, 1)

    def append(self, tokens: Tokens, known: int, count: int, s: torch.Tensor) -> torch.Tensor:
        """Add the tokens `known` to `count - 1` to a block that begins with the state s, and return their outputs
        [count - known, value_heads, value_dim]."""
        new = slice(known, count)
        q, v = torch.zeros_like(self.k), torch.zeros_like(self.u)
        q[:, new], v[:, new] = tokens.q.transpose(0, 1), tokens.v.transpose(0, 1)
        self.k[:, new] = tokens.k.transpose(0, 1)
        for t in range(known, count):
            self.g[:, t] = tokens.g[t - known] + (self.g[:, t - 1] if t else 0)
        decay = torch.exp(self.g).unsqueeze(2)
        places = torch.arange(BLOCK, device=s.device)
        # Masked before the exponential, which would overflow for later tokens.
        between = self.g.unsqueeze(2) - self.g.unsqueeze(1)
        between = torch.exp(between.masked_fill(places > places.unsqueeze(1), float("-inf")))
        if tokens.beta is None:
            self.u[:, new] = v[:, new]
        else:
            beta = torch.zeros_like(self.g)
            beta[:, new] = tokens.beta.to(beta.dtype).transpose(0, 1)
            self._solve(v, beta.unsqueeze(2), decay, between, s, new)
        by_head = torch.bmm(q, self.k.transpose(1, 2))[self._heads()]
        out = decay * torch.bmm(q[self._heads()], s) + torch.bmm(between * by_head, self.u)
        return out[:, new].transpose(0, 1)

    def _solve(
        self,
        v: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        between: torch.Tensor,
        s: torch.Tensor,
        new: slice,
    ) -> None:
        """Compute u of the new tokens of a delta net, each from the ones before."""
        from_state = beta * (v - decay * torch.bmm(self.k[self._heads()], s))
        by_head = torch.bmm(self.k, self.k.transpose(1, 2))[self._heads()]
        factors = beta * between * by_head
        for t in range(new.start, new.stop):
            # Those of tokens from t on are still zero.
            earlier = torch.bmm(factors[:, t : t + 1], self.u)
            self.u[:, t] = from_state[:, t] - earlier[:, 0]

    def passed(self, s: torch.Tensor) -> torch.Tensor:
        """Return the state behind the block, if it began with s."""
        last = self.g[:, -1:]
        weighted = self.k[self._heads()] * torch.exp(last - self.g).unsqueeze(2)
        return torch.exp(last).unsqueeze(2) * s + torch.bmm(weighted.transpose(1, 2), self.u)

    def _heads(self) -> torch.Tensor:
        """[value_heads], the k head of each."""
        heads = torch.arange(self.spec.value_heads, device=self.k.device)
        shared = self.spec.value_heads // self.spec.key_heads
        return heads % self.spec.key_heads if self.spec.takes_turns else heads // shared
