"""The training script, at a size that takes seconds."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from sluice import LLM, SamplingParams
from sluice.models.hub import BUNDLED
from training import dialogue, documents, evaluate, progress, recall, train
from training.curriculum import CURRICULUM, Batch, planned, schedule
from training.dialogue import Turn
from training.facts import FactSource
from training.model import Qwen3, Shape, initialise, rotary, rotate
from training.offsets import SHARPNESS, initialise_offsets, offset_biases
from training.rows import Lesson, RowSource
from training.tokenizer import SPACE, train_tokenizer
from training.words import Namer
from training.writing import Row, TurnWriter


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    source = FactSource(Namer(random.Random(1), held_out=False))
    return train_tokenizer([source.draw().statement for _ in range(200)])


def new_run(tokenizer: Tokenizer) -> train.Run:
    model = Qwen3(Shape(tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=64, num_hidden_layers=1))
    initialise(model, 1)
    return train.Run(model, tokenizer, seed=1)


BATCH = Batch(2, 96, Lesson(talk_share=0.5, recital_share=0.3, dense_share=0.5, variety=0.5), rate=0.5)


def test_a_sitting_goes_on_where_the_last_one_stopped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The same weights as without the break, and a checkpoint that can be served."""
    whole, first, second = (new_run(tokenizer) for _ in range(3))
    for _ in range(6):
        whole.one_step(BATCH)
    for _ in range(3):
        first.one_step(BATCH)
    first.save(tmp_path)
    second.restore(tmp_path / train.state_file(first.part))
    for _ in range(3):
        second.one_step(BATCH)
    assert second.step == 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name
    with LLM(tmp_path / "model", max_total_tokens=64) as llm:
        assert len(llm.generate("The river", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_it_learns_and_reports(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tokenizer)
    for _ in range(12):
        run.one_step(replace(BATCH, rate=1.0))
    assert sum(run.losses[-3:]) < sum(run.losses[:3]) - 1.0
    train.report(run, 0.5)
    assert "step    12" in capsys.readouterr().out
    assert not run.losses


def test_every_stage_of_the_curriculum_has_its_steps() -> None:
    plan = planned(1.0)
    stages = [stage for course in CURRICULUM for stage in course.stages]
    assert len(plan) == sum(stage.steps for stage in stages)
    assert {batch.length for batch in plan} == {128, 256, 512, 1024, 2048, 4096}
    assert planned(1.0) == plan
    assert len(planned(1e-9)) == len(stages)


def test_rows_of_a_step_are_its_own_and_the_same_every_time(tokenizer: Tokenizer) -> None:
    rows = RowSource(tokenizer, 5)
    tokens, weights = rows.batch(3, 2, 300)
    assert tokens.shape == weights.shape == (2, 301)
    assert torch.equal(tokens, RowSource(tokenizer, 5).batch(3, 2, 300)[0])
    assert not torch.equal(tokens, rows.batch(4, 2, 300)[0])
    assert 0.04 < (weights == 1.0).float().mean() < 0.7


ROWS = "0435a0bef7ab637b082c259613f902a2b182f8f3170e5c59e56f1f06b909cfe9"


def test_the_bundled_model_was_trained_on_these_rows() -> None:
    """If they are to be others, it is to be trained again: its card says that the command makes this model."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    stages = [stage for course in CURRICULUM for stage in course.stages]
    drawn = [RowSource(tokenizer, train.SEED).batch(1, 4, 300, stage.lesson)[0] for stage in stages]
    assert hashlib.sha256(b"".join(tokens.numpy().tobytes() for tokens in drawn)).hexdigest() == ROWS


def test_what_the_assistant_says_weighs_most(tokenizer: Tokenizer) -> None:
    """Of the text alone a sample; an answer begins after the mark of its turn, and what it repeats weighs half."""
    tokens, weights = RowSource(tokenizer, 5).batch(3, 3, 500)
    kinds = [0.0, dialogue.TEXT_WEIGHT, dialogue.RESTATED_WEIGHT, dialogue.ANSWER_WEIGHT]
    assert weights.unique().tolist() == pytest.approx(kinds)
    assert 0.05 < (weights == dialogue.TEXT_WEIGHT).sum() / (weights <= dialogue.TEXT_WEIGHT).sum() < 0.2
    row, weight = tokens[0].tolist(), weights[0].tolist()
    first = next(index for index, each in enumerate(weight) if each > dialogue.RESTATED_WEIGHT / 2)
    assert tokenizer.decode(row[:first], skip_special_tokens=False).endswith("<|im_start|>assistant\n")


def test_answers_are_counted_where_every_token_is_the_likeliest(tokenizer: Tokenizer) -> None:
    """Those that say that there is no answer are counted apart; an answer that the row cuts off is not counted."""
    row = Row([], [])
    writer = TurnWriter(tokenizer)
    for answer in ("Oslo", documents.UNKNOWN, "Bern", "Rome"):
        writer.add(row, [Turn("user", "a"), Turn("assistant", f"It is {answer}.", restated=5)])
    for answer in ("Good day", "Hello"):
        writer.add(row, [Turn("user", "a"), Turn("assistant", answer)])
    tokens, weights = torch.tensor([row.tokens[:-2]]), torch.tensor([row.weights[:-2]])
    model = Knowing(tokens[0], wrong_at=end_of(tokenizer, row, "Bern"))
    counts = progress.answered(model, tokenizer, tokens, weights)
    assert [str(each) for each in counts] == ["2/3", "1/1", "1/1"]


def end_of(tokenizer: Tokenizer, row: Row, word: str) -> int:
    """Return where the last token of a word is in a row."""
    own = tokenizer.encode(f" {word}").ids
    return next(at for at in range(len(row.tokens)) if row.tokens[at : at + len(own)] == own) + len(own) - 1


class Knowing(Qwen3):
    """Foretells each token of a row but one."""

    def __init__(self, tokens: torch.Tensor, wrong_at: int) -> None:
        super().__init__(Shape(int(tokens.max()) + 1, hidden_size=64, intermediate_size=64, num_hidden_layers=1))
        self.foretold = tokens[1:].clone()
        self.foretold[wrong_at - 1] = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.foretold[None], self.shape.vocab_size).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


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


def test_the_command_as_documented_with_one_worker_and_with_two(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the folder named, and one step: its defaults once could not be used at all.

    Of two workers each computes half of the rows, and both learn what one learns. Weights that a worker moves by its
    own half alone go elsewhere.
    """
    for name, more in (("one", ()), ("two", ("--workers", "2"))):
        (tmp_path / name / "model").mkdir(parents=True)
        shutil.copy(BUNDLED / "tokenizer.json", tmp_path / name / "model")  # to learn it takes longer than the steps
        train.main(["--out", str(tmp_path / name), "--steps", "1", *more])
        assert "step     1" in capfd.readouterr().out
    config = json.loads((tmp_path / "one" / "model" / "config.json").read_text())
    assert config == json.loads((BUNDLED / "config.json").read_text())
    start = Qwen3(Shape(config["vocab_size"]))
    initialise(start, train.SEED)
    initialise_offsets(start)
    files = ("one/state-0-of-1.pt", "two/state-0-of-2.pt", "two/state-1-of-2.pt")
    one, two, other = (torch.load(tmp_path / file)["model"] for file in files)
    for name, weight in start.state_dict().items():
        assert torch.equal(two[name], other[name])
        moved = [(after[name].double() - weight.double()).flatten() for after in (one, two)]
        if "norm" not in name and not name.endswith("k_proj.bias"):
            assert torch.cosine_similarity(*moved, dim=0) > 0.93, name


def test_the_rate_warms_up_stays_and_falls_to_nothing() -> None:
    rates = [schedule(step, 1000) for step in (0, 99, 339, 670, 999)]
    assert rates[0] < 0.02
    assert rates[1] == rates[2] == 1.0
    assert rates[3] == pytest.approx(0.5)
    assert 0 < rates[4] < 0.01


def test_every_course_begins_and_ends_with_a_rate_of_next_to_nothing() -> None:
    """The weights have come to rest, and from rest the next course sets out; none of its steps is without effect."""
    rates = [batch.rate for batch in planned(1.0)]
    for course in CURRICULUM:
        own = [rates.pop(0) for _ in range(sum(stage.steps for stage in course.stages))]
        assert max(own) == course.peak
        assert 0 < own[0] <= 0.01 * course.peak
        assert 0 < own[-1] < 0.01 * course.peak


def test_the_heads_of_the_first_layers_look_back() -> None:
    model = Qwen3(Shape(10))
    initialise(model, 1)
    initialise_offsets(model)
    biased = [bool(layer.self_attn.q_proj.bias.any()) for layer in model.layers]
    assert biased == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("left", "arguments", "reason"),
    [
        (("state-0-of-2.pt", "state-1-of-2.pt"), (), "of a run with other --workers, got 1"),
        (("state-0-of-1.pt",), ("--seed", "2"), "has a run with --seed 1, got 2"),
        (("state-0-of-1.pt",), ("--scale", "0.5"), "has a run with --scale 1.0, got 0.5"),
        (("state-0-of-1.pt",), ("--steps", "3"), "has done 3 steps, got --steps 3"),
        (("model/model.safetensors",), (), "would be overwritten"),
        ((), ("--scale", "nan"), "must be a number above 0, got 'nan'"),
        ((), ("--steps", "0"), "must be a whole number of at least 1, got '0'"),
    ],
)
def test_a_run_that_cannot_go_on_is_not_begun_anew(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    left: tuple[str, ...],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    """It would be written over, and hours of training with it."""
    (tmp_path / "model").mkdir()
    for name in left:
        torch.save({"step": 3, "seed": 1, "scale": 1.0}, tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.glob("**/*.*")}
    with pytest.raises(SystemExit):
        train.main(["--out", str(tmp_path), *arguments])
    assert reason in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.glob("**/*.*")}


def test_workers_whose_states_are_of_different_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was killed between its two files would add up gradients of different weights."""
    for index, step in enumerate((200, 400)):
        torch.save({"step": step, "seed": 1, "scale": 1.0}, tmp_path / f"state-{index}-of-2.pt")
    with pytest.raises(SystemExit):
        train.main(["--out", str(tmp_path), "--workers", "2"])
    assert "of different steps, [200, 400]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments", "reason"),
    [
        (recall.main, ("--concurrency", "0"), "argument --concurrency: must be a whole number of at least 1, got '0'"),
        (recall.main, ("--lengths", "20"), "argument --lengths: must be a whole number of at least 80, got '20'"),
        (recall.main, ("--tokenizer", "missing.json"), "--tokenizer missing.json is not a file"),
        (evaluate.main, ("--json", "missing/a.json"), "argument --json: there is no folder missing"),
        (evaluate.main, ("--model", "missing"), "--model missing is not the folder of a checkpoint"),
    ],
)
def test_wrong_command_lines_of_the_measurements(
    main: Callable[[list[str]], None], arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before an hour of questions, not after it."""
    with pytest.raises(SystemExit):
        main(list(arguments))
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("distances", [range(1, 2), range(4, 5), range(8), range(20)])
def test_a_head_looks_back_as_far_as_it_is_to_when_the_training_begins(distances: range) -> None:
    """Whatever the tokens are: its biases alone decide, at the end of a long text, too."""
    shape = Shape(10)
    length = 3800
    query, key = (normed(bias) for bias in offset_biases(shape, distances))
    cos, sin = rotary(shape, length)
    scores = rotate(query[None], cos[-1:], sin[-1:]) @ rotate(key.expand(length, -1), cos, sin).T
    attention = torch.softmax(scores[0] * shape.head_dim**-0.5, dim=0).flip(0)
    assert attention[distances.start : distances.stop].sum() > 0.5
    assert attention[distances.start : distances.stop].min() > 0.3 / len(distances)


def normed(head: torch.Tensor) -> torch.Tensor:
    return SHARPNESS * head * head.square().mean().rsqrt()
