"""A lack of memory is told from options that are wrong: an engine that follows another one is started again later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from sluice.assembly import engine as assembly
from sluice.assembly.engine import build_engine
from sluice.config import EngineConfig, MemoryShortage
from sluice.process.engine_process import is_shortage
from tier_schedules import BlockingLink


def build(folder: Path, max_total_tokens: int = 1024) -> Exception:
    """Return the error with which an engine cannot be built."""
    config = EngineConfig.from_options({"model": str(folder), "max_total_tokens": max_total_tokens})
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test checks its type
        build_engine(config, BlockingLink(), progress=False, follows=True)
    return caught.value


def test_a_pool_that_does_not_fit_now_may_fit_later(tmp_path: Path) -> None:
    error = build(tiny_models.save("llama", tmp_path / "llama"), 1 << 40)
    assert "tokens fit" in str(error)
    assert is_shortage(error)


def test_an_allocator_that_has_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the processor raises a RuntimeError, like errors that no wait helps against."""

    def on_processor(*args: Any, **options: Any) -> None:
        torch.empty(1 << 50)

    def on_gpu(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    def wrong(*args: Any, **options: Any) -> None:
        torch.zeros(2, 3) @ torch.zeros(2, 3)

    for load, is_lacking in ((on_processor, True), (on_gpu, True), (wrong, False)):
        monkeypatch.setattr(assembly, "load", load)
        error = build(tmp_path)
        assert is_shortage(error) is isinstance(error, MemoryShortage) is is_lacking
