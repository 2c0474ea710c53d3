"""Ways of saying one thing. Some of each are held out: training never draws them, the evaluation no others."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass


def ways(text: str) -> tuple[str, ...]:
    """Templates that are separated by bars."""
    return tuple(" ".join(way.split()) for way in text.split("|") if way.strip())


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Templates with slots: {y} the subject, {b} the subject without its article, {x} the attribute, {z} the value."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()

    def draw(self, rng: random.Random, *, held_out: bool, variety: float = 1.0) -> str:
        """One template; of the trained ones where none is held out."""
        return rng.choice(self.known(held_out=held_out, variety=variety))

    def known(self, *, held_out: bool, variety: float = 1.0) -> tuple[str, ...]:
        """The templates that may be drawn.

        Args:
            variety: share of the trained templates, of which the first are the plainest.
        """
        if held_out and self.held_out:
            return self.held_out
        return self.trained[: math.ceil(variety * len(self.trained))]


def skeleton(template: str) -> str:
    """What a template has beside its slots: the same for templates that differ in marks and capitals alone."""
    return " ".join(re.sub(r"[^\w\s]", " ", re.sub(r"{\w+}", " _ ", template)).lower().split())


def pattern(template: str) -> re.Pattern[str]:
    """Finds a template in a text, whatever its slots hold within one sentence."""
    pieces = [re.escape(piece) for piece in re.split(r"{\w+}", template)]
    return re.compile(r"[^.?!\n]{1,60}".join(pieces), re.IGNORECASE)
