"""What the recalling checkpoint is made of: codes, weights of rotary pairs, sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import make_recall
from benchmarks.exact_recall import SHAPES, RecallShape, ShapeError
from benchmarks.exact_recall.construction import recall_tensors
from benchmarks.exact_recall.golay import golay_codes
from benchmarks.exact_recall.offsets import gap_of, separate_offsets
from sluice.models.layers import Rotary
from sluice.models.ops import rotate
from sluice.models.rope import Rope


def test_any_two_codes_differ_in_eight_places() -> None:
    """Codes that are alike let a wrong token score as much as the right one."""
    codes = golay_codes(4096).astype(np.float32)
    products = codes @ codes.T
    np.fill_diagonal(products, 0)
    assert products.max() == 8
    with pytest.raises(ValueError, match="4097"):
        golay_codes(4097)


def test_weights_are_the_best_there_are() -> None:
    """The simplex method stopping early: a grid over all weights of three pairs finds nothing better."""
    frequencies, reach = np.array([1.0, 0.31, 0.04]), 300
    weights, gap = separate_offsets(frequencies, reach)
    steps = np.linspace(0, 1, 101)
    grid = [gap_of(np.array([a, b, 1 - a - b]), frequencies, reach) for a in steps for b in steps if a + b <= 1]
    assert gap == gap_of(weights, frequencies, reach) >= max(grid)
    assert gap < max(grid) + 0.01
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(("name", "least"), [("small", 0.0555), ("middle", 0.1599)])
def test_gap_over_a_million_positions(name: str, least: float) -> None:
    """A smaller gap would need scores that bfloat16 does not hold."""
    shape = SHAPES[name]
    assert separate_offsets(shape.frequencies[shape.fast_pairs], shape.max_positions).gap > least


def test_the_previous_token_is_found_at_four_million_positions() -> None:
    """Angles that are inexact at 4M, or weights made for 1M: the heads of layer 0 would find another token."""
    shape = replace(SHAPES["small"], max_positions=1 << 22, previous=1)
    tensors = recall_tensors(shape)
    rotary = Rotary(Rope(1e30), shape.head_dim, torch.bfloat16)
    one = 24 * (shape.previous + 2)
    gain = (shape.hidden_size / 26) ** 0.5
    q, k = (
        (tensors[f"model.layers.0.self_attn.{which}_proj.weight"][:, one] * gain)
        .unflatten(0, (-1, shape.head_dim))
        .bfloat16()
        for which in "qk"
    )
    positions = torch.arange(1 << 22)[-50_000:]
    keys = rotate(k.expand(len(positions), -1, -1), rotary(positions))
    query = rotate(q[None], rotary(positions[-1:]))
    scores = (query[0] @ keys[:, 0].T).float() * shape.head_dim**-0.5
    found = len(positions) - 2
    others = torch.cat((scores[0, :found], scores[0, found + 1 :]))
    assert float(scores[0, found] - others.max()) > 30


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"previous": 0}, "previous must be at least 1, got 0"),
        ({"previous": 3}, "at most 2 heads"),
        ({"hidden_size": 97}, "at most 1 in 97 dimensions"),
        ({"vocab_size": 4097}, "vocab_size must be from 3 to 4096, got 4097"),
        ({"max_positions": 1 << 25}, "max_positions must be from 2 to 16777216"),
        ({"max_positions": 1 << 22}, "at most 1: of 32 rotary pairs 24 turn less"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, int], said: str) -> None:
    """A checkpoint would come out that recalls sometimes."""
    with pytest.raises(ShapeError) as error:
        replace(SHAPES["small"], **changes)
    assert said.replace("at most 2 heads", "at most the 2 heads") in str(error.value)


def test_script_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A size that cannot be must end with one line, not a traceback."""
    assert make_recall.main(["--out", str(tmp_path / "a"), "--max-positions", "4096"]) == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert make_recall.main(["--out", str(tmp_path / "b"), "--previous", "9"]) == 1
    assert "previous must be" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_odd_shapes_are_refused() -> None:
    """Query heads that share no KV head evenly."""
    with pytest.raises(ShapeError, match="num_heads must be a multiple of num_kv_heads = 2, got 3"):
        RecallShape(hidden_size=128, num_heads=3, num_kv_heads=2, head_dim=64, previous=1)
