"""Blocks of the ring follow from what a machine can do, and from nothing else."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

import tiny_models
from sluice.assembly.load import load
from sluice.assembly.ring_sizes import LEAST_BLOCK, MOST_BLOCK, block_tokens, measured_rates
from sluice.config import EngineConfig
from sluice.types.footprint import KVSizes

RATE = 5e9
SMALL, LARGE = KVSizes(2, 1, 64, 2), KVSizes(28, 8, 128, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama().save_pretrained(folder)
    return folder


def test_small_tokens_make_long_blocks() -> None:
    """Blocks that load in less time than it takes to ask for them: most of a decoded token's time was that."""
    assert block_tokens(RATE, SMALL, 16) == 4096
    assert block_tokens(2e9, SMALL, 16) == 2048
    assert block_tokens(RATE, LARGE, 16) == LEAST_BLOCK
    assert block_tokens(1e12, SMALL, 16) == MOST_BLOCK


@pytest.mark.parametrize("page_size", [48, 100, 8192])
def test_blocks_are_whole_pages(page_size: int) -> None:
    """A block that ends inside a page, or has none."""
    found = block_tokens(RATE, SMALL, page_size)
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


def test_an_engine_starts_where_no_file_can_be_written_to_measure(folder: Path, tmp_path: Path) -> None:
    """A limit on the size of files, which does what a full disk does, that lets ten engines die at their start: each
    stream of the first one waited a minute for its end."""
    options = {"model": str(folder), "max_total_tokens": 256, "kv_disk": str(tmp_path / "pages"), "page_size": 16}
    options["kv_disk_bytes"] = 1 << 20
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        model = load(EngineConfig.from_options(options), progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "no temporary file could be written to measure: File too large" in model.info.reasons["ring_block_tokens"]
    assert model.offload is not None
