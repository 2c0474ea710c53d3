"""Whether the numbers of a cost model's file are such as a `StepCost` can go on from."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.scheduler.cost import KEPT_RATIOS, NUM, LearntRegime
from sluice.scheduler.pacer import LearntPace

LARGEST = 1e50
"""Of any number. Products of a few are finite, and what divides by them is not 0."""


def check_learnt(learnt: LearntPace) -> None:
    """
    Raises:
        ValueError: a number is missing, out of range or one too many; the message names it.
    """
    _check_above_0("prior", learnt.costs.prior.values)
    _check_not_below_0("largest_mixed and largest", (learnt.largest_mixed, learnt.largest))
    for regime, each in learnt.costs.regimes.items():
        try:
            _check_regime(each)
        except ValueError as error:
            raise ValueError(f"{regime.value} steps: {error}") from None


def _check_regime(learnt: LearntRegime) -> None:
    """
    Raises:
        ValueError: as `check_learnt`.
    """
    if learnt.num_steps < 1:
        raise ValueError(f"num_steps is {learnt.num_steps}, it must be above 0")
    for name, values in (("matrix", learnt.matrix), ("vector", learnt.vector), ("factors", learnt.factors)):
        if len(values) != NUM:
            raise ValueError(f"{name} has {len(values)} entries of {NUM}")
    for row in learnt.matrix:
        if len(row) != NUM:
            raise ValueError(f"a row of matrix has {len(row)} entries of {NUM}")
        _check_not_below_0("matrix", row)
    if not 1 <= len(learnt.ratios) <= KEPT_RATIOS:
        raise ValueError(f"ratios has {len(learnt.ratios)} entries, 1 to {KEPT_RATIOS} are accepted")
    _check_not_below_0("vector", learnt.vector)
    _check_not_below_0("factors", learnt.factors)
    _check_above_0("sums", learnt.sums)
    _check_above_0("gain", (learnt.gain,))
    _check_above_0("ratios", learnt.ratios)


def _check_not_below_0(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not 0 <= value <= LARGEST:
            raise ValueError(f"{name} has {value}, from 0 to {LARGEST:g} is accepted")


def _check_above_0(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not 1 / LARGEST <= value <= LARGEST:
            raise ValueError(f"{name} has {value}, from {1 / LARGEST:g} to {LARGEST:g} is accepted")
