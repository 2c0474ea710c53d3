"""Training documents: texts full of facts and conversations about them. An answer repeats what was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from training import lexicon, prose, talk, values
from training.dialogue import Turn
from training.facts import Fact, FactSource
from training.noise import capital, careless, framed

ABSENT_SHARE = 0.2
"""Questions whose answer is not in the text."""
UNKNOWN = "something I do not know"
"""In place of their values."""
FACT_SHARES = (0.15, 0.4, 0.7, 0.9, 1.0)
"""Sentences of a text that hold a fact. In the first lessons all do."""
CHARACTERS_PER_TOKEN = 2.9
ROUND_TOKENS = 30
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
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer in one sentence.",
    "Be helpful.",
    "Be brief.",
    "Answer the question.",
    "You answer questions about a text.",
)
BULLETS = ("", "", "- ", "* ", "#")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and the facts in it, their values written as the text writes them."""

    text: str
    facts: tuple[Fact, ...]


def count_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1


def passage(source: FactSource, tokens: int, fact_share: float, count: Callable[[str], int] = count_tokens) -> Passage:
    """Draw about `tokens` tokens of facts and of sentences that hold none, in paragraphs or in lines.

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
            lines.append(". ".join(_told(source, fact) for fact in told))
        else:
            facts.append(source.draw())
            lines.append(_told(source, facts[-1]))
        total += count(f" {lines[-1]}.")
    text = _listed(rng, lines) if rng.random() < 0.15 else _prose(rng, lines)
    if rng.random() < 0.1:
        return Passage(text.lower(), tuple(replace(fact, value=fact.value.lower()) for fact in facts))
    return Passage(text, tuple(facts))


def passage_to_ask_about(source: FactSource, tokens: int, fact_share: float, count: Callable[[str], int]) -> Passage:
    """Draw passages until one has a fact: a short one may have none."""
    while not (read := passage(source, tokens, fact_share, count)).facts:
        pass
    return read


def _told(source: FactSource, fact: Fact) -> str:
    return framed(source.rng, fact, source.variety)


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
    """Draw a sentence that answers no question: plain, or a string of words."""
    rng = source.rng
    if rng.random() < 0.75:
        return prose.sentence(rng)
    drawn = rng.choices((*lexicon.THING_NOUNS, *lexicon.VALUE_WORDS), k=rng.randint(3, 9))
    joined = f" {rng.choice(('and', 'of', 'with', 'or', 'in the', 'near a'))} ".join(drawn[:3])
    return " ".join(("The", joined, *drawn[3:])) if rng.random() < 0.7 else f"{values.code(source.names)} {joined}"


def conversation(source: FactSource, tokens: int, *, dense: bool = False) -> list[Turn]:
    """Draw about `tokens` tokens: a passage, and questions whose answers are in it or not.

    Args:
        dense: a short passage of nothing but facts, and many questions: of the same tokens, more have to be found.
    """
    rng = source.rng
    share = rng.uniform(0.2, 0.4) if dense else rng.uniform(0.3, 0.65) if tokens < 1500 else rng.uniform(0.6, 0.9)
    plain = dense or rng.random() > source.variety
    read = passage(source, int(share * tokens), 1.0 if plain else rng.choice(FACT_SHARES))
    rounds = max(1, int((1 - share) * tokens / ROUND_TOKENS))
    asked = rng.sample(read.facts, min(rounds, len(read.facts)))
    if dense and read.facts:
        asked += rng.choices(read.facts, k=int((rounds - len(asked)) * (1 - ABSENT_SHARE)))
    missing = int(len(asked) * ABSENT_SHARE / (1 - ABSENT_SHARE) + rng.random())
    pairs = [
        *((fact, fact.value) for fact in asked),
        *((source.draw(), UNKNOWN) for _ in range(missing if asked else 1)),
    ]
    rng.shuffle(pairs)
    return _opened(source, read.text, [turn for fact, value in pairs for turn in exchange(source, fact, value)])


def exchange(source: FactSource, fact: Fact, value: str) -> tuple[Turn, Turn]:
    """Return a question for the fact, and the answer with this value; small letters are answered in them."""
    rng = source.rng
    question = rng.choice(fact.questions)
    said = careless(rng, question) if rng.random() < source.variety else f"{capital(question)}?"
    asked = capital(fact.asked.lower()) if said == said.lower() else fact.asked
    return Turn("user", said), _answer(asked, value)


def recital(source: FactSource, tokens: int) -> list[Turn]:
    """Draw about `tokens` tokens: facts, and all of them told again in another order, as answers without questions.

    Here a value has to be found more often than anywhere else, and among a few.
    """
    read = passage(source, int(0.45 * tokens), 1.0)
    again = source.rng.sample(read.facts, len(read.facts))
    return [Turn("user", read.text), *(_answer(fact.asked, fact.value) for fact in again)]


def _answer(asked: str, value: str) -> Turn:
    return Turn("assistant", f"{asked} {value}.", restated=len(asked))


def _opened(source: FactSource, text: str, turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns, with the text before the first question, after it, or in a turn of its own."""
    rng = source.rng
    first = turns[0].text
    chance = rng.random()
    question_last = 0.5 if source.loose else 0.66
    lead = rng.choice(LEADS)
    head = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.12 else []
    if chance < question_last:
        return [*head, Turn("user", f"{lead}{text}{rng.choice(BETWEEN)}{first}"), *turns[1:]]
    if chance < 0.8:
        between = rng.choice(("\n\n", "\n\n", "\n", " ", "\n\nText: "))
        return [*head, Turn("user", f"{first}{between}{text}"), *turns[1:]]
    if chance < 0.9:
        return [Turn("system", f"{lead}{text}"), *turns]
    return [*head, Turn("user", f"{lead}{text}"), Turn("assistant", rng.choice(NOTED)), *turns]


def chat(source: FactSource, tokens: int) -> list[Turn]:
    """Draw small talk, facts told in passing and asked back."""
    rng = source.rng
    turns = [Turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    told: list[Fact] = []
    for _ in range(max(2, tokens // ROUND_TOKENS)):
        chance = rng.random()
        if told and chance < 0.4:
            fact = told.pop(rng.randrange(len(told)))
            turns += exchange(source, fact, fact.value)
        elif chance < 0.7:
            told.append(source.draw())
            turns += [Turn("user", f"{_told(source, told[-1])}."), Turn("assistant", rng.choice(NOTED))]
        elif chance < 0.78:
            turns += exchange(source, source.draw(), UNKNOWN)
        else:
            said, answer = talk.exchange(source.names)
            turns += [Turn("user", said), Turn("assistant", answer)]
    return turns
