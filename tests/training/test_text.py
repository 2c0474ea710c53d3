"""The text that the bundled model learns from: what it asks for is there, once, and names of the other world never."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from sluice.models.hub import BUNDLED
from training import dialogue, small_talk
from training.facts import FactSource
from training.questions import Question, question
from training.rows import RowSource, count_tokens
from training.words import Namer, is_held_out


def namer(seed: int, *, held_out: bool = False) -> Namer:
    return Namer(random.Random(seed), held_out=held_out)


def count_words(text: str) -> int:
    return len(text.split())


def test_names_are_of_one_world() -> None:
    for held_out in (False, True):
        names = namer(1, held_out=held_out)
        drawn = [names.word() for _ in range(500)]
        assert {is_held_out(name) for name in drawn} == {held_out}
        assert len(set(drawn)) > 400


def test_facts_of_a_text_cannot_be_mixed_up() -> None:
    """Two answers to one question would make a right answer a matter of luck."""
    facts = FactSource(random.Random(1), namer(2))
    drawn = [facts.draw() for _ in range(400)]
    answers = {question: set() for fact in drawn for question in fact.questions}
    for fact in drawn:
        for asked in fact.questions:
            answers[asked].add(fact.answer)
    assert {len(each) for each in answers.values()} == {1}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_asked_for_is_in_the_text(seed: int) -> None:
    """Or the answer says that it is not."""
    turns = dialogue.recall(random.Random(seed), namer(seed), 400, count_tokens)
    turns = turns[turns[0].role == "system" :]
    text = turns[0].text
    assert [turn.role for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
    for turn in turns[1::2]:
        value = turn.text.rstrip(".").split()[-1]
        assert value in text or turn.text.startswith(("The text does not say", "You have not told me"))


def test_an_echo_says_every_fact_again() -> None:
    first, again = dialogue.echo(random.Random(3), namer(3), 200, count_tokens)
    assert sorted(first.text.split(". ")) != first.text.split(". ")
    assert sorted(first.text.rstrip(".").split(". ")) == sorted(again.text.rstrip(".").split(". "))


def test_small_talk_has_one_answer_for_what_is_said() -> None:
    """Two answers to the same words are two of one entry, so that none contradicts the other."""
    said = [saying for sayings, _ in small_talk.TALK for saying in sayings]
    assert len(said) == len(set(said))


def test_a_row_has_its_length_and_weighs_what_the_assistant_says() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    source = RowSource(tokenizer, 5)
    tokens, weights = source.batch(3, 500)
    assert tokens.shape == weights.shape == (3, 501)
    assert weights.unique().tolist() == pytest.approx([0.0, dialogue.TEXT_WEIGHT, 1.0])
    row, weight = tokens[0].tolist(), weights[0].tolist()
    first = weight.index(1.0)
    assert tokenizer.decode(row[:first], skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    assert RowSource(tokenizer, 5).batch(3, 500)[0].tolist() == tokens.tolist()


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_question_is_as_long_and_its_fact_as_deep_as_asked(depth: float) -> None:
    asked = question(4, 600, depth, count_words)
    assert abs(count_words(asked.prompt) - 600) < 40
    assert abs(asked.depth - depth) < 0.1


def test_an_answer_is_right_if_it_holds_the_value_as_a_word() -> None:
    asked = Question("", "Ada lives in Os.", "Os", 0.0)
    assert asked.is_answered_by("Ada lives in Os.")
    assert not asked.is_answered_by("Ada lives in Oslo.")
