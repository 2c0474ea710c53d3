"""Small talk: what the model is, what it can do and what it cannot."""

from __future__ import annotations

import random

from training import small_talk
from training.dialogue import Turn
from training.phrasings import ways
from training.words import ADJECTIVES, NOUNS, Namer

NOTHING_READ = "I do not know. I am a very small model: give me a text, and I look for the answer in it."
CANNOT = "I cannot do that. I am a very small model: I find facts in a text that you give me."
CANNOT_ADD = "I cannot calculate. I am a very small model: I find facts in a text that you give me."

LEARNED_BY_HEART = 0.35
"""Exchanges of a row's small talk that are replaced by a question that every child can answer."""
ITSELF = frozenset(("Who made you?", "How big are you?", "Are you clever?", "What can you do?"))
"""What begins the entries without a draw of their answer: with one, all later text would be other text."""
WISHES = ways(
    """
    write {a} | write a poem about the {n} | write an essay on {n}s | translate {n} into French
    | translate this into German | write a program that sorts {n}s | write code for a {n} | make a picture of a {n}
    | draw a {n} | play a song | summarise this book for me | explain the {n} to me | plan my holidays
    | book a {j} {n} for me | search the web for {n}s | open the {n} | send an email to my {n} | set an alarm
    | tell me a story | write a story | solve this puzzle | correct my spelling
    | write a letter to the {n} | make a list of {n}s | give me advice about my {n} | think of a name for my {n}
    """
)
SUMS = ways(
    """
    what is {p} plus {q} | {p} + {q} | {p}+{q} | how much is {p} and {q} | what is {p} - {q} | {p} * {q}
    | what is {p} times {q} | add {p} and {q} | {p} minus {q} | calculate {p} / {q} | what is the sum of {p} and {q}
    | divide {p} by {q} | {p}+{q}=
    """
)
WORKS = ("an essay", "a letter", "a report", "a song", "an email", "a speech", "a novel", "a script")


def conversation(names: Namer, rounds: int) -> list[Turn]:
    """Draw small talk, with more of what is to be known by heart than elsewhere."""
    rng = names.rng
    turns = []
    for _ in range(rounds):
        said, answer = exchange(names)
        if rng.random() < LEARNED_BY_HEART:
            question, answer = small_talk.schooling(rng)
            said = small_talk.careless(rng, question)
        turns += [Turn("user", said), Turn("assistant", answer)]
    return turns


def exchange(names: Namer) -> tuple[str, str]:
    """Draw what somebody says without a text, and the answer."""
    rng = names.rng
    chance = rng.random()
    if chance < 0.5:
        sayings, answers = rng.choice(small_talk.TALK)
        answer = answers[0] if sayings[0] in ITSELF else rng.choice(answers)
        return small_talk.careless(rng, rng.choice(sayings)), answer
    if chance < 0.62:
        question, answer = small_talk.schooling(rng)
        return small_talk.careless(rng, question), answer
    if chance < 0.78:
        return small_talk.careless(rng, _wish(rng)), CANNOT
    if chance < 0.86:
        one, two = rng.randint(0, 10 ** rng.randint(1, 4)), rng.randint(0, 10 ** rng.randint(1, 4))
        return small_talk.careless(rng, rng.choice(SUMS).format(p=one, q=two)), CANNOT_ADD
    question = small_talk.beyond(rng, names)
    answer = CANNOT if question.startswith(("Write", "Translate", "Explain", "Give", "Can you")) else NOTHING_READ
    return small_talk.careless(rng, question), answer


def _wish(rng: random.Random) -> str:
    wish = rng.choice(WISHES).format(a=rng.choice(WORKS), n=rng.choice(NOUNS), j=rng.choice(ADJECTIVES))
    return rng.choice(("", "", "", "please ", "can you ", "could you ", "I want you to ")) + wish
