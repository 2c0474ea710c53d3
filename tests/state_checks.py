"""What must hold for the operations of layers with a state, by whatever computes them."""

from __future__ import annotations

import random

import torch

from sluice.attention.states import StateSpec
from sluice.models.ops import Ops
from tests.state_lives import EDGES, Inputs, Piece, Slots, cut, plain_conv, random_life, token_by_token

LENGTH = 300
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 2e-2}


def whole(ops: Ops, spec: StateSpec, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a fresh row of all tokens gives, and S at its anchor."""
    slots = Slots.of(ops, spec, 1)
    length = len(inputs.x)
    columns, out = slots.compute([(0, Piece(0, length, length), inputs)])[0]
    return columns, out, slots.s_of(0)


def check_values(ops: Ops, spec: StateSpec, *, is_delta: bool) -> None:
    """Compare with the plain recurrence token by token and with torch's convolution, in float64."""
    inputs = Inputs.random(spec, 192, 1, is_delta=is_delta)
    columns, out, s = whole(ops, spec, inputs)
    expected, expected_s = token_by_token(inputs, spec)
    # Inputs are rounded before both, so that only the columns are less exact in bfloat16.
    tolerance = TOLERANCES[spec.state_dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(s.double(), expected_s, rtol=tolerance, atol=tolerance)
    conv = plain_conv(inputs, Slots.of(ops, spec, 1))
    assert columns.dtype == spec.dtype
    torch.testing.assert_close(columns.double(), conv, rtol=TOLERANCES[spec.dtype], atol=TOLERANCES[spec.dtype])


def check_cuts(ops: Ops, spec: StateSpec, *, is_delta: bool) -> None:
    """Bits of a row are those of a row in one chunk, for chunks of one token, for the edges, and for random cuts."""
    inputs = Inputs.random(spec, 200, 2, is_delta=is_delta)
    columns, out, s = whole(ops, spec, inputs)
    source = random.Random(3)
    lists = [(), tuple(range(1, 200)), *((edge,) for edge in EDGES)]
    lists += [tuple(source.sample(EDGES, 4)) for _ in range(4)]
    lists += [tuple(source.sample(range(1, 200), source.randint(1, 9))) for _ in range(8)]
    for cuts in lists:
        slots = Slots.of(ops, spec, 1)
        parts = [slots.compute([(0, piece, inputs)])[0] for piece in cut(200, cuts)]
        assert torch.equal(torch.cat([part for part, _ in parts]), columns), cuts
        assert torch.equal(torch.cat([part for _, part in parts]), out), cuts
        assert torch.equal(slots.s_of(0), s), cuts


def check_drafts(ops: Ops, spec: StateSpec, *, is_delta: bool) -> None:
    """Tokens that are not firm may be others, behind ends of blocks, too: those that are kept have the same bits."""
    reach, source = 70, random.Random(4)
    inputs, drafts = (Inputs.random(spec, LENGTH, seed, is_delta=is_delta) for seed in (5, 6))
    columns, out, _ = whole(ops, spec, inputs)
    for _ in range(20):
        slots = Slots.of(ops, spec, 1, reach)
        life = random_life(LENGTH, reach, source)
        for piece, kept in zip(life, [*(after.start for after in life[1:]), LENGTH], strict=True):
            # Tokens that are computed again are drafts now, other than those that the request will have.
            mixed = _with_drafts(inputs, drafts, kept)
            found, given = slots.compute([(0, piece, mixed)])[0]
            assert torch.equal(found[: kept - piece.start], columns[piece.start : kept]), piece
            assert torch.equal(given[: kept - piece.start], out[piece.start : kept]), piece


def _with_drafts(inputs: Inputs, drafts: Inputs, kept: int) -> Inputs:
    def mixed(true: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
        return torch.cat((true[:kept], draft[kept:]))

    tokens = inputs.tokens
    beta = None if tokens.beta is None or drafts.tokens.beta is None else mixed(tokens.beta, drafts.tokens.beta)
    four = (mixed(true, draft) for true, draft in zip(tokens[:4], drafts.tokens[:4], strict=True))
    return Inputs(mixed(inputs.x, drafts.x), type(tokens)(*four, beta))


def check_records(ops: Ops, spec: StateSpec, *, is_delta: bool) -> None:
    """A record, and the state at an anchor, have the bits of a fresh run of exactly as many tokens."""
    reach, source = 70, random.Random(7)
    inputs = Inputs.random(spec, LENGTH, 8, is_delta=is_delta)
    fresh = {}
    for position in (64, 128, 192, 256):
        slots = Slots.of(ops, spec, 1, reach)
        slots.compute([(0, Piece(0, position, position), inputs)])
        fresh[position] = slots.s_of(0), slots.state.anchor_columns[0].clone()
        assert torch.equal(fresh[position][1], inputs.x[position - spec.taps + 1 : position])
    for _ in range(12):
        slots, anchor, made = Slots.of(ops, spec, 1, reach, records=5), 0, set()
        for piece in random_life(LENGTH, reach, source):
            passed = [at for at in fresh if anchor < at <= piece.firm]
            slots.compute([(0, piece, inputs)], tuple((0, at, at // 64) for at in passed))
            anchor, made = slots.anchors[0], made | set(passed)
            if anchor:
                assert torch.equal(slots.s_of(0), fresh[anchor][0])
                assert torch.equal(slots.state.anchor_columns[0], fresh[anchor][1])
        for position in made:
            assert torch.equal(slots.state.records_s[position // 64], fresh[position][0]), position
            assert torch.equal(slots.state.records_columns[position // 64], fresh[position][1]), position


def check_batch(ops: Ops, spec: StateSpec) -> None:
    """Bits of rows in one batch are those of each alone, beside a row that only pads it."""
    source = random.Random(9)
    inputs = [Inputs.random(spec, 150, seed) for seed in range(4)]
    alone = [whole(ops, spec, row)[:2] for row in inputs]
    slots = Slots.of(ops, spec, 6)
    lives = [cut(150, source.sample(range(1, 150), 6)) for _ in inputs]
    found: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in inputs]
    while any(lives):
        chosen = source.sample([row for row in range(4) if lives[row]], source.randint(1, sum(map(bool, lives))))
        slots.anchors[5] = 0
        padding = (5, Piece(0, 1, 0), inputs[0])
        batch = [*((row + 1, lives[row].pop(0), inputs[row]) for row in chosen), padding]
        for row, parts in zip(chosen, slots.compute(batch), strict=False):
            found[row].append(parts)
    for row, (columns, out) in enumerate(alone):
        assert torch.equal(torch.cat([part for part, _ in found[row]]), columns)
        assert torch.equal(torch.cat([part for _, part in found[row]]), out)
