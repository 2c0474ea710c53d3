"""Prompts of a stated length: token ids that depend on the seed alone, so that every server gets the same ones."""

from __future__ import annotations

import random
from dataclasses import dataclass

SAFE_VOCABULARY = 256
"""Every model knows the ids below. Which ones a prompt holds does not change how long it takes to compute."""
LOWEST_PART = 8
"""Ids in the first eighth of the vocabulary are left out: there many models have their special tokens."""
WORDS = (
    *("time", "water", "house", "light", "river", "stone", "green", "paper", "music", "north", "table", "horse"),
    *("small", "great", "under", "after", "there", "place", "world", "still", "night", "sound", "point", "earth"),
    *("three", "white", "plant", "story", "power", "young", "watch", "front"),
)
"""Common words, each one token of nearly every tokenizer when a space precedes it."""


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts.

    Args:
        seed: the same seed gives the same prompts.
        vocab_size: ids are below this.
        unique: every key has a text of its own; else all prompts are beginnings of one text, and a prefix cache
            finds whatever it has seen before.
        shared_prefix_tokens: tokens that all prompts begin with, in addition to their own length.
    """

    seed: int
    vocab_size: int = SAFE_VOCABULARY
    unique: bool = True
    shared_prefix_tokens: int = 0

    def prompt(self, key: str, length: int, *, repeats: int = 1, with_prefix: bool = True) -> tuple[int, ...]:
        """A text of `length` tokens, `repeats` times, behind the shared prefix."""
        own = self._draw(key if self.unique else "common", length) * repeats
        prefix = self._draw("shared prefix", self.shared_prefix_tokens) if with_prefix else ()
        return prefix + own

    def _draw(self, key: str, length: int) -> tuple[int, ...]:
        rng = random.Random(f"{self.seed}/{key}")
        ids = range(self.vocab_size // LOWEST_PART, self.vocab_size)
        return tuple(rng.choices(ids, k=length))


def as_text(prompt: tuple[int, ...]) -> str:
    """A text with a word for each id: about as many tokens, by whatever tokenizer."""
    return " ".join(WORDS[token % len(WORDS)] for token in prompt)
