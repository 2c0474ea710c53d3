"""Facts told by a clause in words drawn at random, and asked for in the same words: "Ada lorned the tin into Z".

The relations of the list teach their own words. What holds for any words is that the question has those of the
statement, in another order, with a question word in the value's place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training import glue, values, words
from training.verbs import Verb

BE = Verb("is", "be", "was")
PREPOSITIONS = words.split("in on under with from to at by for into onto after about against through near of as over")
DETERMINERS = ("the", "a", "its", "their", "some", "no", "all", "")
DESCRIBED_SHARE = 0.2
"""Clauses that say what something is like: "the mill is fond of Z"."""
QUESTION_WORDS = {
    "spot": "where",
    "place": "where",
    "date": "when",
    "day": "when",
    "clock": "when",
    "year": "when",
    "person": "who",
}
"""What asks for values of a kind; the others are asked for by "what"."""
KINDS = (*values.OPEN_KINDS, "spot", "spot", "thing", "food", "animal", "job", "quantity", "place")
"""Kinds of values, each as often as it is drawn."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause without its subject and its value: the verb, and what stands around the value."""

    verb: Verb
    rest: str
    """What follows the verb: "the tin into"; nothing, or with a space before it."""
    tail: str
    """What follows the value; nothing, or with a space before it."""
    kind: str
    """The kind of the value."""

    @property
    def is_description(self) -> bool:
        return self.verb == BE


def drawn(rng: random.Random, word: Callable[[], str]) -> Clause:
    """Draw a clause.

    Args:
        word: draws a word that may stand for a noun, a verb or an adjective.
    """
    kind = rng.choice(KINDS)
    preposition = "" if kind == "spot" or rng.random() < 0.4 else f" {rng.choice(PREPOSITIONS)}"
    if rng.random() < DESCRIBED_SHARE:
        return Clause(BE, f" {word()}{preposition}", "", kind)
    base = word()
    chance = rng.random()
    rest = tail = ""
    if chance < 0.35:
        rest = f" {_object(rng, word)}"
    elif chance < 0.6:
        tail = f" {rng.choice(PREPOSITIONS)} {_object(rng, word)}"
    elif chance < 0.75:
        tail = f" {glue.words(rng, 3)}".rstrip()
    past = f"{base}d" if base.endswith("e") else f"{base}ed"
    return Clause(Verb(f"{base}s", base, past), f"{rest}{preposition}", tail, kind)


def _object(rng: random.Random, word: Callable[[], str]) -> str:
    noun = f"{rng.choice(DETERMINERS)} {word()}".strip()
    return f"{noun} of {word()}" if rng.random() < 0.2 else noun


def statement(rng: random.Random, clause: Clause) -> str:
    """Draw a template that tells {z} about {y}."""
    chance = rng.random()
    rest, tail = clause.rest, clause.tail
    verb = rng.choice((clause.verb.present, clause.verb.past, clause.verb.past))
    if not clause.is_description and chance < 0.15:
        verb = f"{rng.choice(('will', 'did', 'had to', 'used to', 'wants to', 'can'))} {clause.verb.base}"
    elif chance < 0.25:
        verb = f"{rng.choice(glue.WORDS)} {verb}"
    told = f"{{y}} {verb}{rest} {{z}}{tail}"
    if 0.25 < chance < 0.35:
        told = f"it was {{z}} that {{y}} {verb}{rest}{tail}"
    elif 0.35 < chance < 0.42:
        told = f"{{z}} is what {{y}} {verb}{rest}{tail}"
    elif 0.42 < chance < 0.48 and not clause.is_description:
        told = f"{{z}} was {clause.verb.past}{rest}{tail} by {{y}}"
    return f"{glue.words(rng, 4)}{told}" if rng.random() < 0.25 else told


def questions(rng: random.Random, clause: Clause) -> tuple[str, ...]:
    """Draw templates that ask for {z}."""
    rest, tail = clause.rest, clause.tail if rng.random() < 0.7 else ""
    what = QUESTION_WORDS.get(clause.kind, "what")
    if clause.is_description:
        asked = (f"{what} is {{y}}{rest}", f"{{y}} is{rest} {what}", f"tell me {what} {{y}} is{rest}")
    else:
        one, end = clause.verb.base, f"{rest}{tail}"
        asked = (
            f"{what} does {{y}} {one}{end}",
            f"{what} did {{y}} {one}{end}",
            f"{what} will {{y}} {one}{end}",
            f"tell me {what} {{y}} {rng.choice((clause.verb.past, clause.verb.present))}{end}",
            f"{rng.choice(('which one', 'which of them', 'what exactly', 'which thing'))} does {{y}} {one}{end}",
            f"{{y}} {clause.verb.past}{rest} {what}",
            f"{what} was it that {{y}} {clause.verb.past}{end}",
            *((f"how much did {{y}} {one}{end}",) if clause.kind in ("quantity", "price") else ()),
        )
        if preposition := _preposition(rest):
            asked = (*asked, f"{preposition} {what} does {{y}} {one}{rest.removesuffix(f' {preposition}')}{tail}")
    return (*asked, f"{glue.words(rng, 4)}{rng.choice(asked)} {glue.words(rng, 2)}".strip())


def _preposition(rest: str) -> str:
    last = rest.rsplit(" ", 1)[-1]
    return last if last in PREPOSITIONS else ""


def answer(clause: Clause) -> str:
    """Return how an answer begins: a template."""
    return (
        f"{QUESTION_WORDS.get(clause.kind, 'what').capitalize()} {{y}} {clause.verb.past}{clause.rest}{clause.tail} is"
    )


def who_questions(clause: Clause) -> tuple[str, ...]:
    """Return templates that ask for {y}."""
    return f"who {clause.verb.past}{clause.rest} {{z}}", f"tell me who {clause.verb.present}{clause.rest} {{z}}"


def who_answer(clause: Clause) -> str:
    """Return how an answer that names {y} begins: a template."""
    return f"The one who {clause.verb.past}{clause.rest} {{z}} is"
