"""Training documents: conversations about a text full of facts, small talk, stories.

A document is a list of pieces, each with the weight of its tokens in the loss: what the assistant says counts in
full; what a user says cannot be foretold and counts little.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training import prose, small_talk
from training.facts import Fact, FactSource
from training.words import Namer

HEADS = ("", "", "", "Here are some facts.\n\n", "Read this text.\n\n", "Please read this.\n\n", "Text:\n\n")
BEFORE_QUESTION = ("\n\n", "\n\n", "\n\n", "\n", " ", "\n\nQuestion: ", "\n\nNow tell me: ", "\n\nAnswer this: ")
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer in one sentence.",
    "Be helpful.",
    "Be brief.",
    "Answer the question.",
    "You answer questions about a text.",
)
OUTSIDER_SHARE = 0.015
"""Questions asked for a fact that the text does not hold."""
TEXT_WEIGHT, RESTATED_WEIGHT, ANSWER_WEIGHT = 0.1, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """`role` is system, user or assistant, or text for a document without turns."""

    role: str
    text: str
    restated: int = 0
    """Characters at the head of an answer that repeat what was asked for."""

    @property
    def weight(self) -> float:
        """Of its tokens in the loss."""
        return ANSWER_WEIGHT if self.role == "assistant" else TEXT_WEIGHT


Count = Callable[[str], int]
"""Tokens of a text."""


def passage(
    rng: random.Random, facts: FactSource, tokens: int, count: Count, fact_share: float
) -> tuple[str, list[Fact]]:
    """Text of about `tokens` tokens, in paragraphs, and the facts in it, in order."""
    planted: list[Fact] = []
    parts: list[str] = []
    total = 0
    while total < tokens:
        if rng.random() < fact_share:
            planted.append(facts.draw())
            text = planted[-1].statement
        else:
            text = prose.sentence(rng)
        parts.append(text + ("\n\n" if rng.random() < 0.08 else "\n" if rng.random() < 0.08 else " "))
        total += count(f" {text}")
    return "".join(parts).strip(), planted


def recall(rng: random.Random, names: Namer, tokens: int, count: Count) -> list[Turn]:
    """A conversation of about `tokens` tokens about a passage that takes most of them."""
    source = FactSource(rng, names)
    share = rng.uniform(0.45, 0.8) * tokens
    text, facts = passage(rng, source, int(share), count, rng.choice((0.3, 0.6, 0.9, 1.0)))
    turns = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    total = count(text)
    lead = rng.choice(HEADS) + text + rng.choice(BEFORE_QUESTION)
    order = rng.sample(facts, len(facts))
    while True:
        fact = source.draw() if not order or rng.random() < OUTSIDER_SHARE else order.pop()
        question = rng.choice(fact.questions)
        answer = fact.answer if fact in facts else fact.unknown
        total += count(question) + count(answer) + 10
        if total > tokens and lead == "":
            return turns
        turns += [Turn("user", lead + question), Turn("assistant", answer)]
        lead = ""


def echo(rng: random.Random, names: Namer, tokens: int, count: Count) -> list[Turn]:
    """A list of facts, and the same facts again in another order: recall without questions, for the first lessons."""
    source = FactSource(rng, names)
    statements: list[str] = []
    total = 0
    while total < tokens * 0.47:
        statements.append(source.draw().statement)
        total += count(f" {statements[-1]}")
    again = rng.sample(statements, len(statements))
    return [Turn("user", " ".join(statements)), Turn("assistant", " ".join(again))]


def acquaintance(rng: random.Random, names: Namer) -> list[Turn]:
    """A short conversation: small talk, and a few facts that are told and asked back."""
    turns = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    source = FactSource(rng, names)
    told: list[Fact] = []
    for _ in range(rng.randint(1, 5)):
        if told and rng.random() < 0.4:
            fact = rng.choice(told)
            turns += [
                Turn("user", small_talk.careless(rng, rng.choice(fact.questions))),
                Turn("assistant", fact.answer),
            ]
        elif rng.random() < 0.3:
            told.append(source.draw())
            turns += [Turn("user", told[-1].statement), Turn("assistant", rng.choice(NOTED))]
        else:
            said, answer = small_talk.exchange(rng, names)
            turns += [Turn("user", said), Turn("assistant", answer)]
    return turns


NOTED = ("I see. I will remember that.", "Good to know.")


def tale(rng: random.Random) -> list[Turn]:
    """A text without anyone asking for it: a story, or what things are."""
    return [Turn("text", prose.story(rng) if rng.random() < 0.7 else small_talk.plain_text(rng))]
