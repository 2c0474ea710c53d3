"""Blocks of the ring follow from what a machine can do, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_models
from sluice.assembly.load import load
from sluice.assembly.ring_sizes import LEAST_BLOCK, MOST_BLOCK, MeasuredRates, block_tokens, measured_rates
from sluice.config import EngineConfig
from sluice.footprint import KVSizes
from sluice.models.spec import ModelSpec

RATES = MeasuredRates(loading=5e9, flops=2e11)
SMALL, LARGE = KVSizes(2, 1, 64, 2), KVSizes(28, 8, 128, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def spec(folder: Path) -> ModelSpec:
    found = load(EngineConfig.from_options({"model": str(folder), "max_total_tokens": 64}), progress=False).spec
    return replace(found, num_heads=2, head_dim=64)


def test_small_tokens_make_long_blocks(spec: ModelSpec) -> None:
    """Blocks that load in less time than it takes to ask for them: most of a decoded token's time was that."""
    assert block_tokens(RATES, spec, SMALL, 16, step_seconds=0.0) == 4096
    assert block_tokens(replace(RATES, loading=2e9), spec, SMALL, 16, step_seconds=0.0) == 2048
    assert block_tokens(RATES, spec, LARGE, 16, step_seconds=1.0) == LEAST_BLOCK
    assert block_tokens(replace(RATES, loading=1e12), spec, SMALL, 16, step_seconds=9.0) == MOST_BLOCK


def test_no_block_takes_a_chunk_longer_than_a_step(spec: ModelSpec) -> None:
    """Neighbours that wait for one work item: on a slow machine, or with many heads. Where steps are long anyway, so
    may be blocks."""
    slow = replace(RATES, flops=1e11)
    assert block_tokens(slow, spec, SMALL, 16, step_seconds=0.0) == 2048
    assert block_tokens(replace(RATES, flops=2e10), spec, SMALL, 16, step_seconds=0.0) == LEAST_BLOCK
    assert block_tokens(slow, spec, SMALL, 16, step_seconds=0.05) == 4096


@pytest.mark.parametrize("page_size", [48, 100, 8192])
def test_blocks_are_whole_pages(spec: ModelSpec, page_size: int) -> None:
    """A block that ends inside a page, or has none."""
    found = block_tokens(RATES, spec, SMALL, page_size, step_seconds=0.0)
    assert found % page_size == 0
    assert 4096 <= found < 4096 + page_size


def test_rates_are_measured_and_leave_torch_as_it_was() -> None:
    """A model that computes on one thread because something was measured before."""
    threads = torch.get_num_threads()
    rates = measured_rates(2)
    assert rates.loading > 1e6
    assert rates.flops > 1e6
    assert torch.get_num_threads() == threads


def test_the_reason_says_what_was_measured_and_what_is_given_stays(folder: Path, tmp_path: Path) -> None:
    """A default that has no explanation; an option that is overruled; a page size that depends on the day, and a file
    that starts empty."""
    options = {"model": str(folder), "max_total_tokens": 256, "kv_disk": str(tmp_path / "pages"), "page_size": 16}
    model = load(EngineConfig.from_options(options), progress=False)
    assert "GB/s read and checked beside" in model.info.reasons["ring_block_tokens"]
    assert model.offload is not None
    assert model.info.config.offload.ring_block_tokens == model.offload.limits.block_pages * 16
    given = load(EngineConfig.from_options(options | {"ring_block_tokens": 32}), progress=False)
    assert given.info.config.offload.ring_block_tokens == 32
    assert "ring_block_tokens" not in given.info.reasons
    assert given.info.config.cache.page_size == model.info.config.cache.page_size == 16
