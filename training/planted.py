"""Questions that measure recall: one of many facts, planted at a known place in a prompt of a known length.

The names are some that the model was not trained on; the phrasings are the plainest of the training, because what is
measured is whether the fact is found wherever it stands. `training.evaluate` asks in other words.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training import documents
from training.facts import FactSource
from training.questions import holds
from training.words import Namer

FACT_SHARE = 0.6
"""Sentences that hold a fact."""
VARIETY = 0.15
"""Share of the phrasings that are drawn, the plainest first."""
MARGIN = 45
"""Tokens kept for the question and the turns around it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt for a chat, and what the answer has to hold."""

    prompt: str
    answer: str
    value: str

    def is_answered_by(self, text: str) -> bool:
        """Return whether an answer gives the right value, as whole words; capitals do not count."""
        return holds(text, self.value)


def question(seed: int, tokens: int, depth: float, count: Callable[[str], int]) -> Question:
    """Draw a question whose prompt has about `tokens` tokens.

    Args:
        depth: where its fact is: 0 at the beginning of the text, 1 at its end.
        count: exact number of tokens of a text.
    """
    rng = random.Random(f"question {seed} {tokens} {depth}")
    source = FactSource(Namer(rng, held_out=True), variety=VARIETY)
    read = documents.passage_to_ask_about(source, tokens - MARGIN, FACT_SHARE, count)
    fact = read.facts[round(depth * (len(read.facts) - 1))]
    asked, answer = documents.exchange(source, fact, fact.value)
    return Question(f"{read.text}\n\n{asked.text}", answer.text, fact.value)
