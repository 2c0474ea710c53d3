"""Short stories, from which the vocabulary of a made checkpoint is learned."""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    """
    Ada Adam Agnes Ahmed Alan Alex Alice Amy Andrew Angela Anna Arthur Ben Bob Carla Carlos Charles Chen Clara
    Daniel David Diana Edward Elena Ella Emily Emma Eric Eva Felix Fiona Frank George Grace Greta Hannah Harry
    Helen Henry Ida Ingrid Ivan Jack James Jane Jim Joe John Julia Karl Kate Laura Leo Linda Lisa Lucas Lucy Mara
    Maria Mark Martin Mary Max Mia Michael Mira Nadia Nina Noah Olga Oliver Omar Oscar Paul Peter Rosa Ruth Sam
    Sara Simon Sofia Susan Thomas Tim Tom Vera Victor Wendy William Yusuf Zoe
    """
)
ANIMALS = _words(
    """
    dog cat horse goat hen duck goose rabbit parrot pony sheep cow pig donkey turtle mouse owl fox hamster snake
    """
)
NOUNS = _words(
    """
    river gate mill wheel boat bridge road house window door garden tree hill field cloud storm wind rain snow sun
    moon star fire night morning evening village town market ship sea beach island forest path wall roof bird fish
    horse dog child king queen farmer sailor teacher friend neighbour song story letter
    """
)
ADJECTIVES = _words(
    """
    old young small big tall quiet loud bright dark warm cold long short happy sad brave clever kind gentle
    strange simple strong slow quick early late deep high empty busy
    """
)
PLACINGS = ("near", "behind", "beside", "above", "below", "under", "beyond", "in front of", "not far from")
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


def a(noun: str) -> str:
    """Return the noun with its article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


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
