"""Faults as text."""

from __future__ import annotations

import pytest

from sluice.types import BatchPlan, Chunk
from sluice.types.faults import Fault, FaultError, FaultKind, of_engine, parse_faults

PLAN = BatchPlan(3, (), (Chunk(1, 0, 0, 2, (4, 5), (), True), Chunk(2, 1, 0, 1, (6,), (), True)))


def test_every_kind_is_understood() -> None:
    assert parse_faults(" crash@20, slow@3=1.5,nan@token:7 ,") == (
        Fault(FaultKind.CRASH, 20),
        Fault(FaultKind.SLOW, 3, seconds=1.5),
        Fault(FaultKind.NAN, token=7),
    )
    assert [fault.kind.value for fault in parse_faults("hang@0,alloc@1,nan@2,slow@token:3=60")] == [
        *("hang", "alloc", "nan", "slow"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("crash", "crash@", "crash@-1", "crash@x", "crash@1=2", "slow@1", "slow@1=x", "slow@1=-1", "slow@1=inf"),
        *("boom@1", "nan@token:", "crash@1;hang@2", "@1"),
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    """A fault that is not understood and never comes makes a test pass that tests nothing."""
    with pytest.raises(FaultError) as refused:
        parse_faults(f"crash@1,{text}")
    assert str(refused.value).startswith(repr(text))


def test_one_by_number_strikes_once_and_one_by_token_in_every_request() -> None:
    by_number, by_token = parse_faults("crash@3,crash@token:6")
    assert (by_number.rows(3, PLAN), by_number.rows(2, PLAN)) == ([0], [])
    assert (by_token.rows(3, PLAN), by_token.rows(9, PLAN)) == ([1], [1])
    assert of_engine((by_number, by_token), 0) == (by_number, by_token)
    assert of_engine((by_number, by_token), 1) == (by_token,)
