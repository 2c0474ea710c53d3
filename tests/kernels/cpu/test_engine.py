"""The compiled kernels in a complete engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sluice.assembly.devices
from any_checkpoint import any_checkpoint
from compiled import TILES, library
from sluice import LLM, SamplingParams
from sluice.config import ConfigError
from sluice.kernels.cpu.library import NAMES, Library
from sluice.llm.outputs import Result

LIBRARY = library()
LEVELS = [name for name, level in NAMES.items() if LIBRARY.has(level)]
PROMPTS = [[(7 * seed + 3 * at) % 500 + 10 for at in range(length)] for seed, length in enumerate((70, 5, 130, 33))]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=2)


def generated(prompts: Sequence[Sequence[int]], **options: Any) -> list[Result]:
    with LLM(any_checkpoint(), **{"max_total_tokens": 2048, "page_size": 16, **options}) as llm:
        return llm.generate([list(prompt) for prompt in prompts], GREEDY)


@pytest.mark.parametrize("level", LEVELS)
def test_float32_gives_the_tokens_of_torch(level: str) -> None:
    """The kernels must read the same pages, slots and positions as torch."""
    ours = generated(PROMPTS, dtype="float32", cpu_kernels=level, chunked_prefill_size=64)
    theirs = generated(PROMPTS, dtype="float32", cpu_kernels="torch", chunked_prefill_size=64)
    assert [result.token_ids for result in ours] == [result.token_ids for result in theirs]


@pytest.mark.parametrize("level", [name for name in LEVELS if NAMES[name] not in TILES])
def test_batches_and_chunks_do_not_change_a_bit(level: str) -> None:
    """In bfloat16, any difference in the order of sums shows. Tokens and log-probabilities must be the same alone and
    in a batch, whole and in chunks."""
    together = generated(PROMPTS, cpu_kernels=level, chunked_prefill_size=32, threads=2)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        (alone,) = generated([prompt], cpu_kernels=level, chunked_prefill_size=-1, threads=1)
        assert alone.samples == expected.samples


def test_without_a_library_torch_computes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An installation that is slow because it had no compiler must log that."""
    monkeypatch.setattr(sluice.assembly.devices, "Library", lambda: Library(tmp_path))
    with caplog.at_level(logging.WARNING, logger="sluice"):
        results = generated(PROMPTS[:1])
    assert len(results[0].token_ids) == 12
    (message,) = [record.getMessage() for record in caplog.records if "torch" in record.getMessage()]
    assert "no C++ compiler" in message


def test_pages_that_the_kernels_do_not_support(caplog: pytest.LogCaptureFixture) -> None:
    """Torch computes attention then, and an explicit request for a level gets an error."""
    with caplog.at_level(logging.WARNING, logger="sluice"):
        generated(PROMPTS[:1], page_size=8)
    assert [record.getMessage() for record in caplog.records if "--page-size is 8" in record.getMessage()]
    with pytest.raises(ConfigError, match=r"--cpu-kernels scalar cannot serve this model: .*--page-size is 8"):
        generated(PROMPTS[:1], page_size=8, cpu_kernels="scalar")
