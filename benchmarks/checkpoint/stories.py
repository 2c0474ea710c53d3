"""Short stories, from which the vocabulary of a made checkpoint is learned."""

from __future__ import annotations

import random

from training.words import ADJECTIVES, ANIMALS, FIRST_NAMES, NOUNS, PLACINGS, a

MIDDLES = (
    "One day {who} found {an_adjective} {noun} {placing} the {other}.",
    "{who} wanted to see the {noun}, but the {other} was too {adjective}.",
    "On the way {who} met {an_adjective} {animal}.",
    '"Where are you going?" asked the {animal}.',
    '"I am looking for the {adjective} {noun}," said {who}.',
    "They walked to the {noun} together.",
    "It was {an_adjective} day, and the {noun} was {second}.",
    "{who} sat down {placing} the {noun} and waited.",
    "Then the {noun} began to shine.",
)
ENDINGS = (
    "In the end they went home and were happy.",
    "From that day on they were friends.",
    "And {who} never forgot the {adjective} {noun}.",
    "Then {who} went to sleep, and all was quiet.",
)


def story(rng: random.Random) -> str:
    """Return a story of five to nine sentences."""
    adjective, animal = rng.choice(ADJECTIVES), rng.choice(ANIMALS)
    if rng.random() < 0.4:
        who = rng.choice(FIRST_NAMES)
        start = f"Once upon a time there was {a(adjective)} child called {who}."
    else:
        who = f"the {animal}"
        start = f"Once upon a time there was {a(adjective)} {animal} {rng.choice(PLACINGS)} the {rng.choice(NOUNS)}."
    middle = rng.sample(MIDDLES, rng.randint(3, 7))
    lines = (start, *(_fill(rng, line, who) for line in middle), _fill(rng, rng.choice(ENDINGS), who))
    return " ".join(line[0].upper() + line[1:] for line in lines)


def _fill(rng: random.Random, line: str, who: str) -> str:
    noun, other = rng.sample(NOUNS, 2)
    adjective, second = rng.sample(ADJECTIVES, 2)
    return line.format(
        who=who,
        noun=noun,
        other=other,
        adjective=adjective,
        an_adjective=a(adjective),
        second=second,
        animal=rng.choice(ANIMALS),
        placing=rng.choice(PLACINGS),
    )
