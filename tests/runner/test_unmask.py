"""Which positions a pass of denoising takes."""

from __future__ import annotations

import pytest
import torch

from sluice.runner.unmask import Strategy, Unmasking

CONFIDENCE = [0.2, 0.9, 0.5, 0.9, 0.1, 0.6]


def chosen(strategy: Strategy, masked: list[int], passes: int = 0, steps: int = 6, threshold: float = 0.7) -> list[int]:
    is_masked = torch.tensor([[column in masked for column in range(6)]])
    found = Unmasking(strategy, threshold, steps).choose(is_masked, torch.tensor([CONFIDENCE]), torch.tensor([passes]))
    return found[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("masked", "steps", "expected"),
    [
        (range(6), 6, [1, 3]),
        (range(6), 2, [1, 3, 5]),
        ([0, 4], 6, [0]),
        ([0, 2, 4], 2, [0, 2, 4]),
        ([1, 3], 6, [1, 3]),
        ([], 6, []),
    ],
    ids=str,
)
def test_dynamic_takes_all_above_the_threshold_and_at_least_its_share(
    masked: list[int], steps: int, expected: list[int]
) -> None:
    """None above it would be a pass without progress, for ever."""
    assert chosen(Strategy.DYNAMIC, list(masked), steps=steps) == expected


@pytest.mark.parametrize(
    ("passes", "steps", "expected"), [(0, 6, [1]), (0, 4, [1, 3]), (1, 4, [1, 3]), (2, 4, [1]), (0, 1, list(range(6)))]
)
def test_static_takes_the_most_confident(passes: int, steps: int, expected: list[int]) -> None:
    """Six positions in four passes: 2, 2, 1, 1. Of equal ones the first is taken."""
    assert chosen(Strategy.STATIC, list(range(6)), passes, steps) == expected


def test_sequential_takes_the_first_masked_ones() -> None:
    assert chosen(Strategy.SEQUENTIAL, [2, 4, 5], steps=3) == [2, 4]


def test_rows_are_apart() -> None:
    """A row's passes and masks are its own."""
    masked = torch.tensor([[True] * 4, [False, True, True, False]])
    confidence = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.3, 0.9]])
    found = Unmasking(Strategy.STATIC, 0.9, 3).choose(masked, confidence, torch.tensor([0, 1]))
    assert found.tolist() == [[True, True, False, False], [False, False, True, False]]
