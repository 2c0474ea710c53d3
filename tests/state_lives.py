"""Random lives of rows with a recurrent state: their inputs, their cuts, and what token by token must come out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sluice.attention.states import LayerState, StatePool, StateRows, StateSpec, StateStep, anchor_of
from sluice.models.ops import Ops
from sluice.models.recurrence import ConvWeights, Tokens

EDGES = (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129)


def state_spec(dtype: torch.dtype = torch.float32, *, takes_turns: bool = False, taps: int = 4) -> StateSpec:
    """Return a spec with two k heads and four v heads."""
    return StateSpec(40, taps, dtype, 2, 16, 4, 24, takes_turns)


@dataclass(frozen=True)
class Inputs:
    """Of one row: all tokens that it may have."""

    x: torch.Tensor
    tokens: Tokens

    @classmethod
    def random(cls, spec: StateSpec, length: int, seed: int, *, is_delta: bool = True) -> Inputs:
        """Return inputs with normalised k, decays between none and strong, and rates between 0 and 1."""
        source = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(length, *shape, generator=source, dtype=spec.state_dtype)

        k = torch.nn.functional.normalize(normal(spec.key_heads, spec.key_dim), dim=-1)
        g = -(2 * normal(spec.value_heads)).exp() / 20
        beta = normal(spec.value_heads).sigmoid() if is_delta else None
        q = normal(spec.key_heads, spec.key_dim)
        v = normal(spec.value_heads, spec.value_dim).to(spec.dtype)
        return cls(normal(spec.channels).to(spec.dtype), Tokens(q, k, v, g, beta))

    def part(self, start: int, end: int) -> Inputs:
        """Return those of some tokens."""
        here = slice(start, end)
        return Inputs(self.x[here], self.tokens.part(here))


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Return the inputs of a batch of rows."""
    q, k, v, g = (torch.cat([part.tokens[i] for part in parts]) for i in range(4))
    rates = [part.tokens.beta for part in parts if part.tokens.beta is not None]
    return Inputs(torch.cat([part.x for part in parts]), Tokens(q, k, v, g, torch.cat(rates) if rates else None))


@dataclass
class Piece:
    """Tokens [start, end) of a row, of which those before `firm` are not computed again."""

    start: int
    end: int
    firm: int


@dataclass
class Slots:
    """The states of some slots and the operations on them."""

    ops: Ops
    state: LayerState
    weight: torch.Tensor
    bias: torch.Tensor
    anchors: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Ops, spec: StateSpec, count: int, reach: int = 0, records: int = 0) -> Slots:
        """Return slots that are open at position 0, and whose other memory is NaN."""
        pool = StatePool(spec, 3, count, records, reach, torch.device("cpu"))
        state = pool.layers[1]
        for part in (state.k, state.u, state.g, state.records_s, state.records_columns):
            part.fill_(float("nan"))
        for slot in range(count):
            pool.open(slot, 0, None)
        source = torch.Generator().manual_seed(5)
        weight = torch.randn(spec.channels, spec.taps, generator=source).to(spec.dtype)
        bias = torch.randn(spec.channels, generator=source).to(spec.dtype)
        return cls(ops, state, weight, bias)

    def compute(
        self,
        pieces: Sequence[tuple[int, Piece, Inputs]],
        exports: tuple[tuple[int, int, int], ...] = (),
        activation: str | None = "silu",
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Compute one batch of (slot, piece, inputs of the whole row); return what each row gives."""
        slots = tuple(slot for slot, *_ in pieces)
        anchors = tuple(self.anchors.get(slot, 0) for slot in slots)
        after = tuple(anchor_of(piece.firm) for _, piece, _ in pieces)
        rows = StateRows(slots, tuple(piece.start for _, piece, _ in pieces), anchors, after, exports)
        q_lens = tuple(piece.end - piece.start for _, piece, _ in pieces)
        batch = joined([inputs.part(piece.start, piece.end) for _, piece, inputs in pieces])
        ops, step = self.ops.of_states(self.state.spec), StateStep(self.state, rows, q_lens)
        columns = ops.causal_conv(batch.x, ConvWeights(self.weight, self.bias, activation), step)
        out = ops.recurrence(batch.tokens, step)
        self.anchors.update(zip(slots, after, strict=True))
        return list(zip(columns.split(q_lens), out.split(q_lens), strict=True))

    def s_of(self, slot: int) -> torch.Tensor:
        """Return a copy of S at the slot's anchor."""
        return self.state.s[slot].clone()


def cut(length: int, cuts: Sequence[int]) -> list[Piece]:
    """Return pieces that end at the cuts, all of them firm."""
    ends = sorted({*(at for at in cuts if 0 < at < length), length})
    return [Piece(start, end, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def random_life(length: int, reach: int, source: random.Random) -> list[Piece]:
    """Return pieces of which at most `reach` tokens are not firm, and are computed again from any of them on."""
    pieces, start, firm = [], 0, 0
    while start < length:
        most = length if source.random() < 0.3 else min(length, start + source.choice((4, 90)))
        end = source.randint(start + 1, most)
        firm = max(firm, source.randint(max(start, end - reach), end))
        pieces.append(Piece(start, end, firm))
        start = source.randint(firm, end)
    return pieces


def token_by_token(inputs: Inputs, spec: StateSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs [T, value_heads, value_dim] of the plain recurrence in float64, and the last S."""
    q, k, v, g = (part.double() for part in inputs.tokens[:4])
    beta = inputs.tokens.beta
    heads = torch.arange(spec.value_heads)
    heads = heads % spec.key_heads if spec.takes_turns else heads // (spec.value_heads // spec.key_heads)
    s = torch.zeros(spec.value_heads, spec.key_dim, spec.value_dim, dtype=torch.float64)
    out = torch.empty(v.shape, dtype=torch.float64)
    for t in range(len(v)):
        key, query = k[t, heads].unsqueeze(2), q[t, heads].unsqueeze(2)
        s = g[t].exp()[:, None, None] * s
        u = v[t] if beta is None else beta[t, :, None].double() * (v[t] - (s * key).sum(1))
        s = s + key * u.unsqueeze(1)
        out[t] = (s * query).sum(1)
    return out, s


def plain_conv(inputs: Inputs, slots: Slots) -> torch.Tensor:
    """Return the convolution with silu of a whole row by torch, in float64."""
    x, weight, bias = inputs.x.double(), slots.weight.double(), slots.bias.double()
    taps = weight.shape[1]
    padded = torch.nn.functional.pad(x.T, (taps - 1, 0))
    sums = torch.nn.functional.conv1d(padded, weight.unsqueeze(1), bias, groups=len(weight))
    return torch.nn.functional.silu(sums).T
