"""Questions that measure recall: one of many facts, planted at a known place in a prompt of a known length.

All names are of the world the model was not trained on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from training.dialogue import passage
from training.facts import FactSource
from training.words import Namer

FACT_SHARE = 0.6
MARGIN = 45
"""Tokens kept for the question and the turns around it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt for a chat, and what the answer has to hold."""

    prompt: str
    answer: str
    value: str
    depth: float
    """Where its fact is: 0 at the beginning of the text, 1 at its end."""

    def is_answered_by(self, text: str) -> bool:
        """Whether an answer gives the right value, as whole words."""
        return re.search(rf"(?<!\w){re.escape(self.value)}(?!\w)", text) is not None


def question(seed: int, tokens: int, depth: float, count: Callable[[str], int]) -> Question:
    """A question whose prompt has about `tokens` tokens, its fact near `depth`.

    Args:
        count: exact number of tokens of a text.
    """
    rng = random.Random(f"question {seed} {tokens} {depth}")
    source = FactSource(rng, Namer(rng, held_out=True))
    text, facts = passage(rng, source, tokens - MARGIN, count, FACT_SHARE)
    places = [text.index(fact.statement) / len(text) for fact in facts]
    index = min(range(len(facts)), key=lambda i: abs(places[i] - depth))
    fact = facts[index]
    return Question(f"{text}\n\n{rng.choice(fact.questions)}", fact.answer, fact.value, places[index])
