"""What `LLM.memory_report` says, against what torch really holds."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from random_checkpoint import HEAD_DIM, NUM_KV_HEADS, NUM_LAYERS, random_checkpoint
from slow import products
from sluice import LLM
from sluice.types.request_limits import LimitError

SLACK = 1 << 20
"""Page tables, sampling parameters and the like, of a few requests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


def held() -> int:
    """Bytes of all storages that any tensor holds."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@products(kernels=["torch", "auto"], dtype=["float32", "bfloat16"])
def test_what_is_allocated(dtype: str, kernels: str, folder: Path) -> None:
    """A report by formula alone says what should be there: a layer or the keys forgotten, and memory runs out."""
    before, size = held(), 4 if dtype == "float32" else 2
    with LLM(folder, dtype=dtype, page_size=32, max_total_tokens=100_000, cpu_kernels=kernels) as llm:
        report = llm.memory_report()
        padding = kernels == "auto" and dtype == "bfloat16"  # a page for padding, where steps are captured
        pages = 100_000 // 32 + (padding and llm.info.config.model.cpu_kernels != "torch")
        assert report["pool_bytes"] == pages * 32 * 2 * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM * size
        assert report["device_kv_bytes"] == report["pool_bytes"] + report["ring_bytes"]
        allocated = held() - before
        assert 0 <= allocated - report["device_kv_bytes"] < report["weights_bytes"] + SLACK
        files = (folder / "model.safetensors").stat().st_size * size / 4
        assert files * 0.95 < report["weights_bytes"] < files * 1.3
        assert llm.memory_report(2) == llm.memory_report(8192) == report


def test_a_tier_on_the_disk(folder: Path, tmp_path: Path) -> None:
    """The space that a file takes on the disk, and the space that is reported."""
    file = tmp_path / "pages"
    with LLM(folder, page_size=32, max_total_tokens=640, kv_disk=file, kv_disk_bytes=1 << 20) as llm:
        report = llm.memory_report()
        status = file.stat()
        assert report["disk_bytes"] == status.st_size
        assert abs(status.st_blocks * 512 - status.st_size) < 1 << 16
        assert report["host_bytes"] == 0
        assert llm.memory_report(640)["disk_bytes"] == 0


def test_requests_that_cannot_be(folder: Path) -> None:
    """A prediction for a length that would be refused."""
    llm = LLM(folder, page_size=32, max_total_tokens=640)
    with pytest.raises(LimitError, match="a request of 641 tokens, but the KV pool is 640"):
        llm.memory_report(641)
    with pytest.raises(LimitError, match="length must be at least 2"):
        llm.memory_report(1)
    assert llm.memory_report(640)["device_kv_bytes"] > 0
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.memory_report()
