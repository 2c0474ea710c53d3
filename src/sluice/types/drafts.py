"""Limits of what guesses tokens ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

NGRAM = "ngram"
"""The algorithm that guesses by n-grams, in the scheduler. All others guess in the runner."""


class NgramLimits(NamedTuple):
    """How n-grams are looked up."""

    shortest: int = 2
    """Least tokens of a match."""
    longest: int = 12
    """Tokens from which on matches are as good as each other; at least `shortest`."""
    capacity: int = 131_072
    """Tokens of recent answers that are kept; 0: none are."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What guesses tokens ahead. How many there may be is `SchedulerLimits.num_draft_tokens`."""

    algorithm: str
    ngram: NgramLimits = field(default_factory=NgramLimits)
    """Used by `NGRAM` alone."""
