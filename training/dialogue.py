"""Turns of training documents, and what their tokens weigh in the loss.

What the assistant says counts in full, what its answer repeats of a question counts half; what a user says cannot be
foretold and counts little.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT_WEIGHT, RESTATED_WEIGHT, ANSWER_WEIGHT = 0.1, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """`role` is system, user or assistant."""

    role: str
    text: str
    restated: int = 0
    """Characters at the head of an answer that repeat what was asked for."""

    @property
    def weight(self) -> float:
        """Return what its tokens weigh in the loss, but for those that are restated."""
        return ANSWER_WEIGHT if self.role == "assistant" else TEXT_WEIGHT
