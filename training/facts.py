"""Facts, questions about them and the answers, which say the fact again in the words in which it was planted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training.words import (
    ANIMALS,
    COLOURS,
    FOODS,
    JOBS,
    MATERIALS,
    SPOT_WORDS,
    SPOTS,
    THINGS,
    Namer,
    a,
)

Drawn = Callable[[random.Random, Namer], str]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: `key` is what makes it the only one of its kind in a text."""

    key: str
    statement: str
    questions: tuple[str, ...]
    answer: str
    value: str
    unknown: str
    """The answer where the text does not hold the fact."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact. Templates name the subject {who} and the value {what}."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    unknown: str
    who: Drawn
    what: Drawn

    def draw(self, rng: random.Random, names: Namer, who: str | None = None) -> Fact:
        """A fact about `who`, or about somebody new."""
        words = {"who": who or self.who(rng, names), "what": self.what(rng, names)}
        return Fact(
            key=self.answer.format(who=words["who"], what=""),
            statement=_sentence(rng.choice(self.statements).format(**words)),
            questions=tuple(_sentence(question.format(**words)) for question in self.questions),
            answer=_sentence(self.answer.format(**words)),
            value=words["what"],
            unknown=_sentence(self.unknown.format(**words)),
        )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _person(_: random.Random, names: Namer) -> str:
    return names.person()


def _place(_: random.Random, names: Namer) -> str:
    return names.place()


def _word(_: random.Random, names: Namer) -> str:
    return names.word()


def _number(_: random.Random, names: Namer) -> str:
    return names.number()


def _thing(rng: random.Random, _: Namer) -> str:
    return f"the {rng.choice(MATERIALS)} {rng.choice(THINGS)}"


def _spot(rng: random.Random, _: Namer) -> str:
    return f"{rng.choice(SPOT_WORDS)} the {rng.choice(SPOTS)}"


def _one_of(words: tuple[str, ...]) -> Drawn:
    return lambda rng, _: rng.choice(words)


def _a(words: tuple[str, ...]) -> Drawn:
    def draw(rng: random.Random, _: Namer) -> str:
        return a(rng.choice(words))

    return draw


def _nobody(_: random.Random, __: Namer) -> str:
    return ""


ABOUT_PEOPLE = (
    Relation(
        ("{who} lives in {what}.", "{who} lives in {what}.", "Today {who} lives in {what}."),
        (
            "Where does {who} live?",
            "Where does {who} live?",
            "In which town does {who} live?",
            "Where is {who}'s home?",
        ),
        "{who} lives in {what}.",
        "The text does not say where {who} lives.",
        _person,
        _place,
    ),
    Relation(
        ("{who} was born in {what}.",),
        ("Where was {who} born?", "In which town was {who} born?"),
        "{who} was born in {what}.",
        "The text does not say where {who} was born.",
        _person,
        _place,
    ),
    Relation(
        ("{who} works as {what}.",),
        ("What does {who} work as?", "What is {who}'s job?", "What does {who} do for a living?"),
        "{who} works as {what}.",
        "The text does not say what {who} works as.",
        _person,
        _a(JOBS),
    ),
    Relation(
        ("{who} has {what}.",),
        ("Which animal does {who} have?", "What animal does {who} have?", "What pet does {who} have?"),
        "{who} has {what}.",
        "The text does not say which animal {who} has.",
        _person,
        _a(ANIMALS),
    ),
    Relation(
        ("{who}'s favourite colour is {what}.",),
        ("What is {who}'s favourite colour?", "Which colour does {who} like best?"),
        "{who}'s favourite colour is {what}.",
        "The text does not say which colour {who} likes best.",
        _person,
        _one_of(COLOURS),
    ),
    Relation(
        ("{who} likes to eat {what}.",),
        ("What does {who} like to eat?", "What food does {who} like?"),
        "{who} likes to eat {what}.",
        "The text does not say what {who} likes to eat.",
        _person,
        _one_of(FOODS),
    ),
    Relation(
        ("{who} is {what} years old.",),
        ("How old is {who}?", "What is {who}'s age?"),
        "{who} is {what} years old.",
        "The text does not say how old {who} is.",
        _person,
        lambda rng, _: str(rng.randint(4, 99)),
    ),
    Relation(
        ("{who}'s best friend is {what}.",),
        ("Who is {who}'s best friend?", "What is the name of {who}'s best friend?"),
        "{who}'s best friend is {what}.",
        "The text does not say who {who}'s best friend is.",
        _person,
        _person,
    ),
    Relation(
        ("{who}'s number is {what}.",),
        ("What is {who}'s number?", "Which number does {who} have?"),
        "{who}'s number is {what}.",
        "The text does not say what {who}'s number is.",
        _person,
        _number,
    ),
)
ABOUT_OTHERS = (
    Relation(
        ("{who} is {what}.",),
        ("Where is {who}?", "Where can I find {who}?"),
        "{who} is {what}.",
        "The text does not say where {who} is.",
        _thing,
        _spot,
    ),
    Relation(
        ("{who} belongs to {what}.",),
        ("Who does {who} belong to?", "Whose is {who}?", "Who owns {who}?"),
        "{who} belongs to {what}.",
        "The text does not say who {who} belongs to.",
        _thing,
        _person,
    ),
    Relation(
        ("The password of {who} is {what}.",),
        ("What is the password of {who}?", "Which password does {who} have?"),
        "The password of {who} is {what}.",
        "The text does not say what the password of {who} is.",
        _place,
        _word,
    ),
    Relation(
        ("The code of {who} is {what}.",),
        ("What is the code of {who}?", "Which code does {who} have?"),
        "The code of {who} is {what}.",
        "The text does not say what the code of {who} is.",
        _place,
        _number,
    ),
    Relation(
        ("The mayor of {who} is {what}.",),
        ("Who is the mayor of {who}?", "What is the name of the mayor of {who}?"),
        "The mayor of {who} is {what}.",
        "The text does not say who the mayor of {who} is.",
        _place,
        _person,
    ),
)
SINGLE = (
    Relation(
        ("The secret word is {what}.", "Remember this: the secret word is {what}."),
        ("What is the secret word?", "Tell me the secret word."),
        "The secret word is {what}.",
        "The text does not say what the secret word is.",
        _nobody,
        _word,
    ),
    Relation(
        ("The magic number is {what}.", "Remember this: the magic number is {what}."),
        ("What is the magic number?", "Tell me the magic number."),
        "The magic number is {what}.",
        "The text does not say what the magic number is.",
        _nobody,
        _number,
    ),
    Relation(
        ("The password is {what}.", "Remember this: the password is {what}."),
        ("What is the password?", "Tell me the password."),
        "The password is {what}.",
        "The text does not say what the password is.",
        _nobody,
        _word,
    ),
)
ABOUT_ME = (
    Relation(
        ("My name is {what}.", "I am called {what}.", "Hello, my name is {what}."),
        ("What is my name?", "Do you know my name?", "Who am I?"),
        "Your name is {what}.",
        "You have not told me your name.",
        _nobody,
        _person,
    ),
    Relation(
        ("I live in {what}.", "My home is in {what}."),
        ("Where do I live?", "In which town do I live?"),
        "You live in {what}.",
        "You have not told me where you live.",
        _nobody,
        _place,
    ),
    Relation(
        ("I work as {what}.",),
        ("What do I work as?", "What is my job?"),
        "You work as {what}.",
        "You have not told me what you work as.",
        _nobody,
        _a(JOBS),
    ),
    Relation(
        ("My favourite colour is {what}.",),
        ("What is my favourite colour?", "Which colour do I like best?"),
        "Your favourite colour is {what}.",
        "You have not told me your favourite colour.",
        _nobody,
        _one_of(COLOURS),
    ),
    Relation(
        ("I have {what}.",),
        ("Which animal do I have?", "What pet do I have?"),
        "You have {what}.",
        "You have not told me which animal you have.",
        _nobody,
        _a(ANIMALS),
    ),
    Relation(
        ("I am {what} years old.",),
        ("How old am I?", "What is my age?"),
        "You are {what} years old.",
        "You have not told me how old you are.",
        _nobody,
        lambda rng, _: str(rng.randint(4, 99)),
    ),
)


class FactSource:
    """Draws facts that cannot be mixed up: no two of one text have the same key.

    Some facts are about somebody already mentioned, so that a name alone does not give the answer.
    """

    def __init__(self, rng: random.Random, names: Namer) -> None:
        self.rng = rng
        self.names = names
        self.keys: set[str] = set()
        self.people: list[str] = []

    def draw(self) -> Fact:
        while True:
            fact = self._draw()
            if fact.key not in self.keys:
                self.keys.add(fact.key)
                return fact

    def _draw(self) -> Fact:
        chance = self.rng.random()
        if chance < 0.02:
            return self.rng.choice(SINGLE).draw(self.rng, self.names)
        if chance < 0.05:
            return self.rng.choice(ABOUT_ME).draw(self.rng, self.names)
        if chance < 0.35:
            return self.rng.choice(ABOUT_OTHERS).draw(self.rng, self.names)
        return self.rng.choice(ABOUT_PEOPLE).draw(self.rng, self.names, self._somebody())

    def _somebody(self) -> str:
        if self.people and self.rng.random() < 0.35:
            return self.rng.choice(self.people)
        self.people.append(self.names.person())
        return self.people[-1]
