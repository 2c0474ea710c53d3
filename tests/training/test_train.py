"""The training script, at a size that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sluice import LLM, SamplingParams
from sluice.models.hub import BUNDLED
from training import train
from training.checkpoint import write_checkpoint
from training.model import Llama, Shape, initialise
from training.rows import RowSource
from training.tokenizer import train_tokenizer


def test_it_learns_and_leaves_a_checkpoint_that_can_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_tokenizer(["The river rises. Where does Ada live? Ada lives in Oslo."])
    model = Llama(Shape(tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=1))
    initialise(model, 1)
    stages = [train.Stage(64, 4, 20), train.Stage(96, 2, 10, echo_share=1.0)]
    tokens, weights = RowSource(tokenizer, 9).batch(8, 64)
    before = train.held_out_loss(model, tokens, weights)
    train.train(model, tokenizer, stages, seed=1, compiled=False)
    assert train.held_out_loss(model, tokens, weights) < before - 0.3
    assert "step    30  length   96" in capsys.readouterr().out
    write_checkpoint(tmp_path, model, tokenizer)
    with LLM(tmp_path, max_total_tokens=64) as llm:
        assert len(llm.generate("The river", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_the_command_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but the folder named, and one step: its defaults once could not be used at all."""
    train.main(["--out", str(tmp_path), "--stages", "1", "--scale", "0.001"])
    assert "step     1  length  128" in capsys.readouterr().out
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == json.loads((BUNDLED / "config.json").read_text())


def test_two_workers_learn_what_one_learns(tmp_path: Path) -> None:
    """Each computes half of the rows; weights that a worker moves by its own half alone go elsewhere."""
    short = ["--stages", "1", "--scale", "0.007"]
    train.main(["--out", str(tmp_path / "one"), *short])
    train.main(["--out", str(tmp_path / "two"), *short, "--workers", "2"])
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    start = Llama(Shape(one["model.embed_tokens.weight"].shape[0]))
    initialise(start, train.SEED)
    for name, weight in start.state_dict().items():
        moved = [(after[f"model.{name}"].double() - weight.bfloat16().double()).flatten() for after in (one, two)]
        if "norm" not in name:
            assert torch.cosine_similarity(*moved, dim=0) > 0.93, name


def test_the_rate_warms_up_stays_and_falls_to_nothing() -> None:
    rates = [train.schedule(step, 1000) for step in (0, 99, 500, 825, 999)]
    assert rates[0] < 0.02
    assert rates[1] == rates[2] == 1.0
    assert rates[3] == pytest.approx(0.5)
    assert 0 < rates[4] < 0.01
