"""The benchmark of the disk tier: its formula, and that it measures what it says."""

from __future__ import annotations

from pathlib import Path

from benchmarks.checkpoint.shapes import SHAPES
from benchmarks.disk.crossover import costs
from benchmarks.disk.turns import Workload, compare
from benchmarks.make_checkpoint import write_checkpoint

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 3,
    "intermediate_size": 5,
}


def test_costs_are_those_counted_by_hand() -> None:
    """A prediction that leaves out a matrix, or counts attention to tokens that are not there yet."""
    params = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 5
    pairs = 1 + 2 + 3
    found = costs(CONFIG, 3, itemsize=2)
    assert found.flop == 2 * 3 * 2 * params + 4 * 2 * 12 * pairs
    assert found.bytes == 3 * 2 * 2 * 2 * 3 * 2


def test_turns_are_computed_again_without_the_tier_and_loaded_with_it(tmp_path: Path) -> None:
    """A benchmark of a tier that is not there, or whose answers are others."""
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(checkpoint, SHAPES["qwen3-0.6b"].tiny())
    work = Workload(conversations=4, prefix=96, said=16, turns=3, pool=256, settled=True)
    off, on, restarted = compare(checkpoint, work, tmp_path, repeats=1, disk_bytes=10_000_000)
    assert off["computed_tokens"] == off["prompt_tokens"]
    for result in (on, restarted):
        assert result["disk_tokens"] > 0.5 * result["prompt_tokens"]
        assert result["computed_tokens"] == result["prompt_tokens"] - result["disk_tokens"]
        assert result["same_answers"]
