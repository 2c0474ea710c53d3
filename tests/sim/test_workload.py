"""Tests for the data of a simulated workload: tokens made lazily, and values that are refused."""

from __future__ import annotations

import pytest

from sluice.config import ConfigError
from sluice.sim.workload import STOP_TOKEN, Arrival, KnownTokens, Prompt, Segment, in_order


def prompt(*segments: tuple[int, int]) -> Prompt:
    return Prompt(tuple(Segment(*each) for each in segments))


def arrival(time: float = 0.0, output_tokens: int = 4, max_tokens: int = 8) -> Arrival:
    return Arrival(time=time, prompt=prompt((1, 5)), output_tokens=output_tokens, max_tokens=max_tokens)


def test_equal_leading_segments_are_equal_tokens() -> None:
    """Prefixes that were shared in the trace would not be found in the cache."""
    one, other = prompt((1, 512), (2, 512)), prompt((1, 512), (3, 512))
    assert one.tokens()[:512] == other.tokens()[:512]
    assert one.tokens()[512] != other.tokens()[512]
    assert prompt((9, 3)).tokens() == prompt((9, 5)).tokens()[:3]
    assert one.length == len(one.tokens()) == 1024


def test_segments_of_many_seeds_begin_differently() -> None:
    """Prompts that share nothing would find each other in the cache."""
    firsts = {Segment(seed, 1).tokens()[0] for seed in range(20_000)}
    assert len(firsts) >= 19_999
    assert STOP_TOKEN not in firsts
    assert max(firsts) < 1 << 31


def test_values_that_cannot_be_are_refused() -> None:
    """A negative time or an empty prompt would be simulated as something else."""
    with pytest.raises(ValueError, match="time must be at least 0, got -1"):
        arrival(time=-1)
    with pytest.raises(ValueError, match="max_tokens 2 are fewer than the 3 output tokens"):
        arrival(output_tokens=3, max_tokens=2)
    with pytest.raises(ValueError, match="at least one token"):
        Arrival(time=0, prompt=KnownTokens(()), output_tokens=1, max_tokens=1)
    with pytest.raises(ValueError, match="segment 4 has 0"):
        prompt((4, 0))


def test_unsorted_arrivals_are_refused() -> None:
    """Time would go backward."""
    with pytest.raises(ConfigError, match=r"request 2 arrives at 1\.0 s"):
        list(in_order([arrival(2.0), arrival(1.0)]))
    with pytest.raises(ConfigError, match="no request"):
        list(in_order([]))
