"""The dtype of a model without compiled kernels: one that torch multiplies fast on this processor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from any_checkpoint import any_checkpoint
from gguf_makers import write_gguf
from sluice import LLM
from sluice.assembly import torch_dtype
from tokenizer_makers import byte_tokenizer

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without products of bfloat16, and much memory."""
    monkeypatch.setattr(torch_dtype, "has_onednn_bfloat16", lambda: False)
    monkeypatch.setattr(torch_dtype, "free_memory", lambda device: PLENTY)


def loaded(model: Path | None = None, **options: Any) -> tuple[torch.dtype, str]:
    """Return the dtype of a loaded model, and why."""
    with LLM(model or any_checkpoint(), device="cpu", max_total_tokens=256, **options) as llm:
        assert llm.info.config.model.dtype == str(llm.info.dtype).removeprefix("torch.")
        return llm.info.dtype, llm.info.reasons.get("dtype", "")


def test_it_is_float32_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """In 16 bits a token takes seconds where it could take a fraction of one."""
    with caplog.at_level(logging.INFO, "sluice.engine"):
        dtype, why = loaded(cpu_kernels="torch")
    assert dtype == FLOAT32
    assert "slowly" in why
    assert "computed in float32" in caplog.text


def test_a_gguf_file_is_dequantised_to_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tiny_models.llama(hidden_size=32, intermediate_size=64).save_pretrained(source)
    byte_tokenizer().save(str(source / "tokenizer.json"))
    path, _ = write_gguf(source, tmp_path / "tiny.gguf", "Q8_0", tokens=None)
    assert loaded(path, tokenizer=source, cpu_kernels="torch")[0] == FLOAT32


def test_a_dtype_that_was_given_is_kept() -> None:
    assert loaded(cpu_kernels="torch", dtype="bfloat16")[0] == BFLOAT16


def test_compiled_kernels_keep_16_bits() -> None:
    """They multiply these as fast on any processor."""
    assert loaded(cpu_kernels="scalar")[0] == BFLOAT16


def test_a_processor_with_products_of_bfloat16_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dtype, "has_onednn_bfloat16", lambda: True)
    assert loaded(cpu_kernels="torch")[0] == BFLOAT16


def test_a_model_that_would_not_fit_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow is better than killed for lack of memory. In float32 the weights take 4 bytes each, 15 MB."""
    monkeypatch.setattr(torch_dtype, "free_memory", lambda device: 20 << 20)
    dtype, why = loaded(cpu_kernels="torch")
    assert dtype == BFLOAT16
    assert "would take" in why
    assert "computed in 16 bits" in caplog.text
