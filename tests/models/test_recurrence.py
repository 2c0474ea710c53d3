"""The convolution and the recurrence of layers with a state: values, and bits that no cut, batch or draft changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from sluice.attention.states import StateRows, StateSpec
from sluice.models.ops import Ops
from tests.state_lives import EDGES, Inputs, Piece, Slots, cut, plain_conv, random_life, state_spec, token_by_token

KINDS = pytest.mark.parametrize("is_delta", [True, False], ids=["delta", "mamba2"])
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 2e-2}


def _whole(spec: StateSpec, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a fresh row of all tokens gives, and S at its anchor."""
    slots = Slots.of(Ops(), spec, 1)
    length = len(inputs.x)
    columns, out = slots.compute([(0, Piece(0, length, length), inputs)])[0]
    return columns, out, slots.s_of(0)


@KINDS
@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_are_those_of_the_recurrence_token_by_token(
    dtype: torch.dtype, takes_turns: bool, is_delta: bool
) -> None:
    spec = state_spec(dtype, takes_turns=takes_turns)
    inputs = Inputs.random(spec, 192, 1, is_delta=is_delta)
    columns, out, s = _whole(spec, inputs)
    expected, expected_s = token_by_token(inputs, spec)
    # Inputs are rounded before both, so that only the columns are less exact in bfloat16.
    tolerance = TOLERANCES[spec.state_dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(s.double(), expected_s, rtol=tolerance, atol=tolerance)
    conv = plain_conv(inputs, Slots.of(Ops(), spec, 1))
    assert columns.dtype == dtype
    torch.testing.assert_close(columns.double(), conv, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_a_convolution_alone_has_no_activation() -> None:
    spec = StateSpec(40, 3, torch.float64)
    slots = Slots.of(Ops(), spec, 1)
    inputs = Inputs.random(state_spec(torch.float64, taps=3), 9, 1)
    rows = StateRows.fresh((0,), (9,))
    found = slots.ops.causal_conv(inputs.x, slots.weight, None, None, slots.state, rows, (9,))
    expected = sum(torch.nn.functional.pad(inputs.x, (0, 0, 2 - i, 0))[:9] * slots.weight[:, i] for i in range(3))
    torch.testing.assert_close(found, expected)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_cuts(dtype: torch.dtype, is_delta: bool) -> None:
    spec = state_spec(dtype)
    inputs = Inputs.random(spec, 200, 2, is_delta=is_delta)
    columns, out, s = _whole(spec, inputs)
    source = random.Random(3)
    lists = [(), tuple(range(1, 200)), *((edge,) for edge in EDGES)]
    lists += [tuple(source.sample(EDGES, 4)) for _ in range(4)]
    lists += [tuple(source.sample(range(1, 200), source.randint(1, 9))) for _ in range(8)]
    for cuts in lists:
        slots = Slots.of(Ops(), spec, 1)
        parts = [slots.compute([(0, piece, inputs)])[0] for piece in cut(200, cuts)]
        assert torch.equal(torch.cat([part for part, _ in parts]), columns), cuts
        assert torch.equal(torch.cat([part for _, part in parts]), out), cuts
        assert torch.equal(slots.s_of(0), s), cuts


@KINDS
def test_tokens_that_are_not_firm_are_computed_again(is_delta: bool) -> None:
    spec, reach, source = state_spec(), 70, random.Random(4)
    inputs, drafts = (Inputs.random(spec, 300, seed, is_delta=is_delta) for seed in (5, 6))
    columns, out, _ = _whole(spec, inputs)
    for _ in range(20):
        slots = Slots.of(Ops(), spec, 1, reach)
        life = random_life(300, reach, source)
        for piece, kept in zip(life, [*(after.start for after in life[1:]), 300], strict=True):
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


@KINDS
def test_a_record_is_the_state_of_a_fresh_run_of_its_tokens(is_delta: bool) -> None:
    spec, reach, source = state_spec(), 70, random.Random(7)
    inputs = Inputs.random(spec, 300, 8, is_delta=is_delta)
    fresh = {}
    for position in (64, 128, 192, 256):
        slots = Slots.of(Ops(), spec, 1, reach)
        slots.compute([(0, Piece(0, position, position), inputs)])
        fresh[position] = slots.s_of(0), slots.state.anchor_columns[0].clone()
        assert torch.equal(fresh[position][1], inputs.x[position - 3 : position])
    for _ in range(12):
        slots, anchor, made = Slots.of(Ops(), spec, 1, reach, records=5), 0, set()
        for piece in random_life(300, reach, source):
            passed = [at for at in fresh if anchor < at <= piece.firm]
            slots.compute([(0, piece, inputs)], tuple((0, at, at // 64) for at in passed))
            anchor, made = slots.anchors[0], made | set(passed)
            if anchor:
                assert torch.equal(slots.s_of(0), fresh[anchor][0])
                assert torch.equal(slots.state.anchor_columns[0], fresh[anchor][1])
        for position in made:
            assert torch.equal(slots.state.records_s[position // 64], fresh[position][0]), position
            assert torch.equal(slots.state.records_columns[position // 64], fresh[position][1]), position


def test_bits_do_not_depend_on_the_batch() -> None:
    spec, source = state_spec(), random.Random(9)
    inputs = [Inputs.random(spec, 150, seed) for seed in range(4)]
    alone = [_whole(spec, row)[:2] for row in inputs]
    slots = Slots.of(Ops(), spec, 6)
    lives = [cut(150, source.sample(range(1, 150), 6)) for _ in inputs]
    found: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in inputs]
    while any(lives):
        chosen = source.sample([row for row in range(4) if lives[row]], source.randint(1, sum(map(bool, lives))))
        # A row that only pads the batch has a slot of its own, where every step begins anew.
        slots.anchors[5] = 0
        padding = (5, Piece(0, 1, 0), inputs[0])
        batch = [*((row + 1, lives[row].pop(0), inputs[row]) for row in chosen), padding]
        for row, parts in zip(chosen, slots.compute(batch), strict=False):
            found[row].append(parts)
    for row, (columns, out) in enumerate(alone):
        assert torch.equal(torch.cat([part for part, _ in found[row]]), columns)
        assert torch.equal(torch.cat([part for _, part in found[row]]), out)


def test_strong_decays_neither_overflow_nor_reach_later_tokens() -> None:
    spec = state_spec()
    inputs = Inputs.random(spec, 130, 10)
    strong = replace(inputs, tokens=inputs.tokens._replace(g=inputs.tokens.g - 50))
    out = _whole(spec, strong)[1]
    expected, _ = token_by_token(strong, spec)
    torch.testing.assert_close(out.double(), expected, rtol=2e-4, atol=2e-4)
