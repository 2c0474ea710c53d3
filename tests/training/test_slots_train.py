"""Training of the slot model, at a size that takes seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from sluice import LLM, SamplingParams
from training.dialogue import Turn
from training.model import Llama, Shape, initialise, rotary, rotate
from training.rows import Row, TurnWriter
from training.slots import documents, train
from training.slots.facts import FactSource
from training.slots.offsets import SHARPNESS, initialise_offsets, offset_biases
from training.slots.rows import SlotRows
from training.slots.tokenizer import SPACE, train_tokenizer
from training.words import Namer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    source = FactSource(Namer(random.Random(1), held_out=False))
    return train_tokenizer([source.draw().statement for _ in range(200)])


def new_run(tokenizer: Tokenizer) -> train.Run:
    model = Llama(Shape(tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=1))
    initialise(model, 1)
    return train.Run(model, tokenizer, seed=1)


BATCH = train.Batch(rows=2, length=96, echo_share=0.5, recital_share=0.3, dense_share=0.5, variety=0.5)


def test_a_sitting_goes_on_where_the_last_one_stopped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The same weights as without the break, and a checkpoint that can be served."""
    whole, first, second = (new_run(tokenizer) for _ in range(3))
    for _ in range(6):
        whole.one_step(BATCH, 0.5)
    for _ in range(3):
        first.one_step(BATCH, 0.5)
    first.save(tmp_path)
    second.restore(tmp_path / train.state_file(first.part))
    for _ in range(3):
        second.one_step(BATCH, 0.5)
    assert second.step == 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name
    with LLM(tmp_path / "model", max_total_tokens=64) as llm:
        assert len(llm.generate("The river", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_it_learns_and_reports(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tokenizer)
    for _ in range(12):
        run.one_step(BATCH, 1.0)
    assert sum(run.losses[-3:]) < sum(run.losses[:3]) - 1.0
    train.report(run, 0.5)
    assert "step    12" in capsys.readouterr().out
    assert not run.losses


def test_every_stage_of_the_curriculum_has_its_steps() -> None:
    plan = train.planned(1.0)
    assert len(plan) == sum(stage.steps for stage in train.CURRICULUM)
    assert {batch.length for batch in plan} == {128, 256, 512, 1024, 2048, 4096}
    assert train.planned(1.0) == plan
    assert len(train.planned(0.0)) == len(train.CURRICULUM)


def test_rows_of_a_step_are_its_own_and_the_same_every_time(tokenizer: Tokenizer) -> None:
    rows = SlotRows(tokenizer, 5)
    tokens, weights = rows.batch(3, 2, 300)
    assert tokens.shape == weights.shape == (2, 301)
    assert torch.equal(tokens, SlotRows(tokenizer, 5).batch(3, 2, 300)[0])
    assert not torch.equal(tokens, rows.batch(4, 2, 300)[0])
    assert 0.04 < (weights == 1.0).float().mean() < 0.7


def test_answers_are_counted_where_every_token_is_the_likeliest(tokenizer: Tokenizer) -> None:
    """Those that say that there is no answer are counted apart; an answer that the row cuts off is not counted."""
    row = Row([], [])
    writer = TurnWriter(tokenizer)
    for answer in ("Oslo", documents.UNKNOWN, "Bern", "Rome"):
        writer.add(row, [Turn("user", "a"), Turn("assistant", f"It is {answer}.", restated=5)])
    writer.add(row, [Turn("user", "a"), Turn("assistant", "Hello")])
    tokens, weights = torch.tensor([row.tokens[:-2]]), torch.tensor([row.weights[:-2]])
    model = new_run(tokenizer).model
    known, absent, said = train.answered(model, tokenizer, tokens, weights)
    assert (known.all, absent.all, said.all) == (3, 1, 0)


def test_a_value_begins_with_one_letter_and_goes_on_the_same_wherever_it_stands(tokenizer: Tokenizer) -> None:
    """So that a model sees where it begins, and can copy it from anywhere: after a space, a quote, or as an answer."""
    for word in ("Drilford", "swordfish42", "xQ7-kk"):
        first, *rest = tokenizer.encode(word).tokens
        assert first == word[0]
        for before, after in (("It is ", "."), ('say "', '"'), ("a\n", ""), ("key=", ";")):
            text = before + word + after
            tokens = tokenizer.encode(text).tokens
            own = [SPACE + first if before[-1] == " " else first, *rest]
            assert any(tokens[index : index + len(own)] == own for index in range(len(tokens))), (text, tokens)
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("distances", [range(1, 2), range(4, 5), range(8), range(20)])
def test_a_head_looks_back_as_far_as_it_is_to_when_the_training_begins(distances: range) -> None:
    """Whatever the tokens are: its biases alone decide, at the end of a long text, too."""
    shape = train.shape_of(10)
    length = 3800
    query, key = (normed(bias) for bias in offset_biases(shape, distances))
    cos, sin = rotary(shape, length)
    scores = rotate(query[None], cos[-1:], sin[-1:]) @ rotate(key.expand(length, -1), cos, sin).T
    attention = torch.softmax(scores[0] * shape.head_dim**-0.5, dim=0).flip(0)
    assert attention[distances.start : distances.stop].sum() > 0.5
    assert attention[distances.start : distances.stop].min() > 0.3 / len(distances)


def normed(head: torch.Tensor) -> torch.Tensor:
    return SHARPNESS * head * head.square().mean().rsqrt()


def test_the_heads_of_the_first_layers_look_back(tokenizer: Tokenizer) -> None:
    model = Llama(train.shape_of(tokenizer.get_vocab_size()))
    initialise(model, 1)
    initialise_offsets(model)
    biased = [bool(layer.self_attn.q_proj.bias.any()) for layer in model.layers]
    assert biased == [True, True, False, False, False]
