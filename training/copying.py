"""Saying a text again, letter for letter."""

from __future__ import annotations

import random

from training import glue, lexicon, prose, values
from training.dialogue import Turn
from training.noise import capital
from training.phrasings import Phrasings, ways
from training.words import Namer

REQUESTS = Phrasings(
    ways(
        """
        repeat {s} | repeat: {s} | copy this: {s} | say {s} | write {s} | echo {s} | repeat after me: {s} | type {s}
        | copy the following exactly: {s} | repeat this string: {s} | please write down {s} | can you repeat {s}
        | can you say {s} | {s} - repeat that | what did i just type: {s} | say this again: {s} | repeat the word {s}
        | copy {s} | give me {s} again | write this: {s} | please repeat exactly: {s} | repeat the text "{s}"
        | say "{s}" | copy "{s}" | i type {s}, and you type it too | now say {s} | write exactly {s}
        """
    ),
    ways(
        """
        i want to read {s} from you | send {s} back to me | reply with {s} and nothing else | print {s}
        | let me see you spell out {s} unchanged | your answer must be {s}
        """
    ),
)
GLUED_SHARE = 0.6
"""Requests in words drawn at random, of those for one word or string."""


def request(rng: random.Random, text: str, *, held_out: bool = False, loose: bool = False) -> str:
    """Draw a wish to have the text said again."""
    glued = not held_out and " " not in text and rng.random() < GLUED_SHARE
    asked = glue.request(rng, loose=loose and rng.random() < 0.5) if glued else REQUESTS.draw(rng, held_out=held_out)
    if asked.endswith(": {s}") and rng.random() < 0.3:
        asked = asked.replace(": {s}", ":\n{s}")
    asked = asked if asked.startswith("{s}") or rng.random() < 0.3 else capital(asked)
    return asked.format(s=text)


def text_to_copy(names: Namer) -> str:
    """Draw something to say again: mostly a string that nothing foretells."""
    rng = names.rng
    chance = rng.random()
    if chance < 0.55:
        return values.random_string(rng, rng.randint(2, 18))
    if chance < 0.7:
        return values.code(names)
    if chance < 0.8:
        return " ".join(values.random_string(rng, rng.randint(2, 7)) for _ in range(rng.randint(2, 4)))
    if chance < 0.92:
        return " ".join(rng.choice(lexicon.VALUE_WORDS) for _ in range(rng.randint(1, 6)))
    return prose.sentence(rng)


def conversation(names: Namer, rounds: int, *, loose: bool = False) -> list[Turn]:
    """Draw texts that are said again, one after the other."""
    turns = []
    for _ in range(rounds):
        text = text_to_copy(names)
        turns += [Turn("user", request(names.rng, text, loose=loose)), Turn("assistant", text)]
    return turns
