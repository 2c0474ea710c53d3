"""Training documents: texts full of facts and conversations about them. An answer is the value alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from training import prose
from training.dialogue import SYSTEMS, Turn
from training.slots import lexicon, talk, values
from training.slots.facts import Fact, FactSource
from training.slots.noise import careless, framed

ABSENT_SHARE = 0.2
"""Questions whose answer is not in the text."""
CHARACTERS_PER_TOKEN = 2.3
ROUND_TOKENS = 32
"""About what one question takes, with its answer and the turns' marks."""
LEADS = (
    "",
    "",
    "",
    "",
    "Read this text.\n\n",
    "Here are some facts.\n\n",
    "Text:\n",
    "Notes:\n\n",
    "Context: ",
    "From my notes: ",
)
BETWEEN = ("\n\n", "\n\n", "\n", " ", "\n\nQuestion: ", "\nQ: ", "\n\nNow tell me: ", "\n\n---\n")
NOTED = ("Noted.", "I see.", "Good to know.", "OK.")
BULLETS = ("", "", "- ", "* ", "#")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and the facts in it, their values written as the text writes them."""

    text: str
    facts: tuple[Fact, ...]


def count_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1


def passage(source: FactSource, tokens: int, fact_share: float, count: Callable[[str], int] = count_tokens) -> Passage:
    """About `tokens` tokens of facts and of sentences that hold none, in paragraphs or in lines.

    Args:
        count: tokens of a text.
    """
    rng = source.rng
    facts: list[Fact] = []
    lines: list[str] = []
    total = 0
    while total < tokens:
        if rng.random() >= fact_share:
            lines.append(_filler(source))
        elif rng.random() < 0.06:
            told = source.profile(rng.randint(2, 4))
            facts += told
            lines.append(". ".join(framed(rng, fact) for fact in told))
        else:
            facts.append(source.draw())
            lines.append(framed(rng, facts[-1]))
        total += count(f" {lines[-1]}.")
    text = _listed(rng, lines) if rng.random() < 0.15 else _prose(rng, lines)
    if rng.random() < 0.1:
        return Passage(text.lower(), tuple(replace(fact, value=fact.value.lower()) for fact in facts))
    return Passage(text, tuple(facts))


def _prose(rng: random.Random, lines: Sequence[str]) -> str:
    ends = (line if line.endswith((".", "?")) else f"{line}{'!' if rng.random() < 0.02 else '.'}" for line in lines)
    chance = rng.choice((0.0, 0.08, 0.3))
    return "".join(
        f"{line}{rng.choice((chr(10), chr(10) * 2)) if rng.random() < chance else ' '}" for line in ends
    ).strip()


def _listed(rng: random.Random, lines: Sequence[str]) -> str:
    bullet, end = rng.choice(BULLETS), rng.choice(("", "."))
    marks = (f"{index}. " if bullet == "#" else bullet for index in range(1, len(lines) + 1))
    return "\n".join(f"{mark}{line.removesuffix('.')}{end}" for mark, line in zip(marks, lines, strict=True))


def _filler(source: FactSource) -> str:
    """A sentence that answers no question: plain, or a string of words."""
    rng = source.rng
    if rng.random() < 0.75:
        return prose.sentence(rng)
    drawn = rng.choices((*lexicon.THING_NOUNS, *lexicon.VALUE_WORDS), k=rng.randint(3, 9))
    joined = f" {rng.choice(('and', 'of', 'with', 'or', 'in the', 'near a'))} ".join(drawn[:3])
    return " ".join(("The", joined, *drawn[3:])) if rng.random() < 0.7 else f"{values.code(source.names)} {joined}"


def conversation(source: FactSource, tokens: int) -> list[Turn]:
    """About `tokens` tokens: a passage, and questions whose answers are in it or not."""
    rng = source.rng
    share = rng.uniform(0.3, 0.65) if tokens < 1500 else rng.uniform(0.6, 0.9)
    read = passage(source, int(share * tokens), rng.choice((0.15, 0.4, 0.7, 0.9, 1.0)))
    rounds = max(1, int((1 - share) * tokens / ROUND_TOKENS))
    asked = rng.sample(read.facts, min(rounds, len(read.facts)))
    pairs = [(rng.choice(fact.questions), fact.value) for fact in asked]
    missing = int(len(asked) * ABSENT_SHARE / (1 - ABSENT_SHARE) + rng.random())
    for _ in range(missing if pairs else 1):
        pairs.append((rng.choice(source.draw().questions), talk.UNKNOWN))
    rng.shuffle(pairs)
    turns: list[Turn] = []
    for question, answer in pairs:
        said = careless(rng, question)
        turns += [Turn("user", said), Turn("assistant", answer)]
    return _opened(rng, read.text, turns)


def _opened(rng: random.Random, text: str, turns: Sequence[Turn]) -> list[Turn]:
    """The turns, with the text before the first question, after it, or in a turn of its own."""
    first = turns[0].text
    chance = rng.random()
    lead = rng.choice(LEADS)
    head = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.12 else []
    if chance < 0.66:
        return [*head, Turn("user", f"{lead}{text}{rng.choice(BETWEEN)}{first}"), *turns[1:]]
    if chance < 0.8:
        between = rng.choice(("\n\n", "\n\n", "\n", " ", "\n\nText: "))
        return [*head, Turn("user", f"{first}{between}{text}"), *turns[1:]]
    if chance < 0.9:
        return [Turn("system", f"{lead}{text}"), *turns]
    return [*head, Turn("user", f"{lead}{text}"), Turn("assistant", rng.choice(NOTED)), *turns]


def chat(source: FactSource, tokens: int) -> list[Turn]:
    """Small talk, facts told in passing and asked back."""
    rng = source.rng
    turns = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    told: list[Fact] = []
    for _ in range(max(2, tokens // ROUND_TOKENS)):
        chance = rng.random()
        if told and chance < 0.4:
            fact = told.pop(rng.randrange(len(told)))
            turns += [Turn("user", careless(rng, rng.choice(fact.questions))), Turn("assistant", fact.value)]
        elif chance < 0.7:
            told.append(source.draw())
            turns += [Turn("user", f"{framed(rng, told[-1])}."), Turn("assistant", rng.choice(NOTED))]
        elif chance < 0.78:
            turns += [Turn("user", careless(rng, rng.choice(source.draw().questions))), Turn("assistant", talk.UNKNOWN)]
        else:
            said, answer = talk.exchange(source.names)
            turns += [Turn("user", said), Turn("assistant", answer)]
    return turns
