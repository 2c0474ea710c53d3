"""The operations of layers with a state by Triton. Interpreted, a token of a head takes some milliseconds."""

from __future__ import annotations

import pytest
import torch

from slow import slow
from sluice.attention.states import StateSpec
from sluice.models.triton_ops import TritonOps
from tests.state_checks import check_batch, check_cuts, check_drafts, check_records, check_values, whole
from tests.state_lives import Inputs, Piece, Slots, cut
from triton_device import HERE, quiet

pytestmark = [quiet, pytest.mark.skipif(HERE.type != "cpu", reason="the lives are on the CPU")]
OPS = TritonOps()
KINDS = pytest.mark.parametrize("is_delta", [True, False], ids=["delta", "mamba2"])
ONE_HEAD = StateSpec(40, 4, torch.float32, 1, 24, 1, 24)


@pytest.mark.parametrize(
    ("dtype", "takes_turns", "is_delta"),
    [
        (torch.float32, True, False),
        (torch.bfloat16, False, False),
        slow(torch.float32, False, True),
        slow(torch.bfloat16, True, True),
    ],
)
def test_values(dtype: torch.dtype, takes_turns: bool, is_delta: bool) -> None:
    """Heads that share keys; more columns than a program has; sizes that are no power of two."""
    check_values(OPS, StateSpec(40, 4, dtype, 2, 24, 4, 40, takes_turns), is_delta=is_delta)


@KINDS
def test_tokens_have_their_bits_in_any_life(is_delta: bool) -> None:
    """Cuts beside and at ends of blocks, a draft that is computed again behind one, and a record there."""
    inputs = Inputs.random(ONE_HEAD, 131, 2, is_delta=is_delta)
    columns, out, s = whole(OPS, ONE_HEAD, inputs)
    slots = Slots.of(OPS, ONE_HEAD, 1, reach=4, records=1)
    life = [Piece(0, 63, 63), Piece(63, 66, 63), Piece(64, 67, 64), Piece(66, 130, 127), Piece(127, 131, 131)]
    for piece, exports in zip(life, ((), (), ((0, 64, 0),), (), ()), strict=True):
        found, given = slots.compute([(0, piece, inputs)], exports)[0]
        assert torch.equal(found, columns[piece.start : piece.end])
        assert torch.equal(given, out[piece.start : piece.end])
    assert torch.equal(slots.s_of(0), s)
    assert torch.equal(slots.state.anchor_columns[0], inputs.x[125:128])
    fresh = Slots.of(OPS, ONE_HEAD, 1)
    fresh.compute([(0, piece, inputs) for piece in cut(64, ())])
    assert torch.equal(slots.state.records_s[0], fresh.s_of(0))
    assert torch.equal(slots.state.records_columns[0], inputs.x[61:64])


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("check", [check_cuts, check_drafts, check_records])
def test_many_lives(check: object, is_delta: bool) -> None:
    assert callable(check)
    check(OPS, ONE_HEAD, is_delta=is_delta)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_batch() -> None:
    check_batch(OPS, ONE_HEAD)
