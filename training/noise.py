"""How people write: what they put before a sentence, and what they leave out of a question."""

from __future__ import annotations

import random

from training.facts import Fact
from training.phrasings import ways

FRAMES = ways(
    """
    by the way, {s} | remember that {s} | note that {s} | please note: {s} | i think {s} | it is known that {s}
    | as far as we know, {s} | they say {s} | we read that {s} | it turns out that {s} | in fact, {s} | of course {s}
    | do not forget: {s} | keep in mind that {s} | for your information, {s} | it is true that {s} | listen: {s}
    | here is a fact: {s} | also, {s} | and {s} | but {s} | today we learned that {s} | a neighbour told us that {s}
    | {s}, as everybody knows | {s}, i believe | {s}, and that will not change
    """
)
BEFORE = ways(
    """
    hey, | please, | so, | ok, | hi! | question: | and | now | one more thing: | sorry, | well, | my question is:
    | hello,
    | tell me, | then | i wonder, | just checking: | quick one:
    """
)
AFTER = ways("please | pls | thanks | then | now | do you know | again | exactly | here | by the way")
ASKING = (
    "what",
    "which",
    "who",
    "when",
    "where",
    "how",
    "whose",
    "do ",
    "does",
    "can",
    "could",
    "any",
    "for",
    "in ",
    "at ",
)


def framed(rng: random.Random, fact: Fact, variety: float) -> str:
    """Return a fact's statement, now and then with words around it; its first letter is as it must be written."""
    if rng.random() < 0.25 * variety:
        frame = rng.choice(FRAMES)
        return capital(frame.format(s=fact.statement)) if not frame.startswith("{s}") else _own(frame, fact)
    return _own("{s}", fact)


def _own(frame: str, fact: Fact) -> str:
    text = frame.format(s=fact.statement)
    return text if fact.begins_with_value else capital(text)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def careless(rng: random.Random, question: str) -> str:
    """Return a question as people type it: often without capitals or marks, with a word more, with a letter wrong."""
    text = question
    if rng.random() < 0.12:
        text = f"{rng.choice(BEFORE)} {text}"
    if rng.random() < 0.08:
        text = f"{text} {rng.choice(AFTER)}"
    if rng.random() < 0.1:
        text = text.replace("'", "")
    if rng.random() < 0.03:
        text = _slip(rng, text)
    chance = rng.random()
    if chance < 0.65:
        text = capital(text)
    elif chance < 0.87:
        text = text.lower()
    elif chance < 0.89:
        text = text.upper()
    mark = "?" if question.startswith(ASKING) or rng.random() < 0.4 else "."
    return text + rng.choice((mark, mark, mark, mark, mark, "", "", f" {mark}", mark * 2))


def _slip(rng: random.Random, text: str) -> str:
    """Return the text with two neighbouring letters of a word exchanged."""
    places = [index for index in range(len(text) - 1) if text[index : index + 2].isalpha()]
    if not places:
        return text
    index = rng.choice(places)
    return text[:index] + text[index + 1] + text[index] + text[index + 2 :]
