"""Ways of saying one thing. Training never draws those that are held out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


def ways(text: str) -> tuple[str, ...]:
    """Return templates that are separated by bars."""
    return tuple(" ".join(way.split()) for way in text.split("|") if way.strip())


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Templates with slots: {y} the subject, {b} the subject without its article, {x} the attribute, {z} the value."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()

    def draw(self, rng: random.Random, *, held_out: bool, variety: float = 1.0) -> str:
        """Draw one template; of the trained ones where none is held out."""
        return rng.choice(self.known(held_out=held_out, variety=variety))

    def known(self, *, held_out: bool, variety: float = 1.0) -> tuple[str, ...]:
        """Return the templates that may be drawn.

        Args:
            variety: share of the trained templates, of which the first are the plainest.
        """
        if held_out and self.held_out:
            return self.held_out
        return self.trained[: math.ceil(variety * len(self.trained))]
