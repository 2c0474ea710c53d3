"""What the card of the bundled model says that it was taught. The card's figures are of these questions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tokenizers import Tokenizer

from sluice import LLM, SamplingParams
from sluice.models.hub import BUNDLED
from training.small_talk import CAPITALS, MONTHS, OPPOSITES, SOUNDS, TALK, WEEK
from training.words import a

MOST_TALK_WRONG = 2
"""Of 194; the card says none. On other machines sums round differently."""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """The answer to every question of this file."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    questions = [*dict(schooling()), *dict(small_talk())]
    turns = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in questions]
    with LLM(max_total_tokens=12_000, page_size=16) as llm:
        prompts = [tokenizer.encode(turn).ids for turn in turns]
        results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=48))
    return {question: result.text.strip() for question, result in zip(questions, results, strict=True)}


def schooling() -> Iterable[tuple[str, str]]:
    for country, capital in CAPITALS.items():
        yield f"What is the capital of {country}?", f"The capital of {country} is {capital}."
    for pair in OPPOSITES.items():
        for word, other in (pair, pair[::-1]):
            yield f"What is the opposite of {word}?", f"The opposite of {word} is {other}."
    for animal, sound in SOUNDS.items():
        yield f"What sound does {a(animal)} make?", f"{a(animal).capitalize()} {sound}."
    for cycle, unit in ((WEEK, "day"), (MONTHS, "month")):
        for index, name in enumerate(cycle):
            after = cycle[(index + 1) % len(cycle)]
            yield f"What {unit} comes after {name}?", f"After {name} comes {after}."
            yield f"What {unit} comes before {after}?", f"Before {after} comes {name}."


def small_talk() -> Iterable[tuple[str, tuple[str, ...]]]:
    return ((saying, replies) for sayings, replies in TALK for saying in sayings)


def test_it_knows_what_it_was_taught(answers: dict[str, str]) -> None:
    """The card claimed sums, of which nearly all are wrong."""
    expected = dict(schooling())
    assert len(expected) == 26 + 40 + 38 + 12
    assert {question: answers[question] for question in expected} == expected


def test_it_answers_small_talk(answers: dict[str, str]) -> None:
    asked = dict(small_talk())
    wrong = {saying: answers[saying] for saying, replies in asked.items() if answers[saying] not in replies}
    assert len(wrong) <= MOST_TALK_WRONG, wrong
