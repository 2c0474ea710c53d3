"""Small talk: what the model is, what it can do and what it cannot."""

from __future__ import annotations

import random

from training import small_talk
from training.slots.phrasings import ways
from training.words import ADJECTIVES, NOUNS, Namer

UNKNOWN = "I do not know."
"""What it says where a text, or the model, does not hold the answer."""
NOTHING_READ = f"{UNKNOWN} I am a very small model: give me a text, and I look for the answer in it."
CANNOT = "I cannot do that. I am a very small model: I find facts in a text that you give me."
CANNOT_ADD = "I cannot calculate. I am a very small model: I find facts in a text that you give me."

OWN_ANSWERS = {
    "Who made you?": "I was trained from nothing by a script that comes with Sluice, on text that it made up.",
    "How big are you?": "I am very small: I have a few million parameters.",
    "Are you clever?": "Not very. But I can find a fact in a long text.",
    "What can you do?": "I can find facts in a text, and say again what you write. Give me a text, then ask about it.",
}
"""Answers to the first saying of an entry of the small talk, in place of those there."""
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


def exchange(names: Namer) -> tuple[str, str]:
    """What somebody says without a text, and the answer."""
    rng = names.rng
    chance = rng.random()
    if chance < 0.5:
        sayings, answers = rng.choice(small_talk.TALK)
        answer = OWN_ANSWERS.get(sayings[0]) or rng.choice(answers)
        return small_talk.careless(rng, rng.choice(sayings)), answer
    if chance < 0.62:
        question, answer = small_talk.schooling(rng, sums=False)
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
