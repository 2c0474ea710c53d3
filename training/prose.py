"""Plain sentences between the facts. They state nothing that a question could ask for."""

from __future__ import annotations

import random

from training.words import ADJECTIVES, NOUNS, PLACINGS, VERBS, a

OPENINGS = (
    "",
    "",
    "",
    "",
    "Every evening ",
    "In the morning ",
    "Sometimes ",
    "Now and then ",
    "In winter ",
    "At night ",
)


def sentence(rng: random.Random) -> str:
    """Draw one plain sentence."""
    subject, other = rng.sample(NOUNS, 2)
    adjective = rng.choice(ADJECTIVES)
    opening = rng.choice(OPENINGS)
    start = "the" if opening else "The"
    form = rng.randrange(4)
    if form == 0:
        return f"{opening}{start} {adjective} {subject} {rng.choice(VERBS)} {rng.choice(PLACINGS)} the {other}."
    if form == 1:
        return f"{opening}{start} {subject} {rng.choice(VERBS)}, and the {adjective} {other} {rng.choice(VERBS)}."
    if form == 2:
        return f"There is {a(adjective)} {subject} {rng.choice(PLACINGS)} the {other}."
    return f"{opening}{start} {subject} is {adjective} and {rng.choice(ADJECTIVES)}."
