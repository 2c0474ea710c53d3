"""What ranks compare before they load: another checkpoint or option on one of them is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from random_checkpoint import random_checkpoint
from sluice.assembly.rank_facts import SAMPLE_BYTES, SAMPLES, difference, facts_of, sampled_fingerprint
from sluice.config import CacheConfig, EngineConfig, ModelConfig


def test_options_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path)
    own = facts_of(EngineConfig(cache=CacheConfig(page_size=16)), folder)
    other = facts_of(EngineConfig(), folder)
    assert difference("rank 3", own, own) is None
    assert (difference("rank 3", other, own) or "").startswith("rank 3 has --page-size None, and rank 0 has 16: start ")


def test_paths_and_devices_may_differ(tmp_path: Path) -> None:
    folder, config = random_checkpoint(tmp_path), EngineConfig()
    there = replace(config, model=ModelConfig(model="/elsewhere", device="cpu", threads=3))
    assert facts_of(there, folder) == facts_of(config, folder)


def test_weights_that_differ_have_other_fingerprints(tmp_path: Path) -> None:
    """Those of a model and of its fine-tune have the same names and sizes."""
    folder = random_checkpoint(tmp_path)
    (weights,) = folder.glob("*.safetensors")
    before, data = sampled_fingerprint(folder), bytearray(weights.read_bytes())
    assert len(data) < SAMPLES * SAMPLE_BYTES, "all of it is sampled"
    data[-1] ^= 1
    weights.write_bytes(data)
    assert sampled_fingerprint(folder) != before
