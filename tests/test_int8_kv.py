"""Keys and values in int8 on a CPU, through a whole engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny_models
from sluice import LLM, SamplingParams
from sluice.assembly.devices import resolve_here
from sluice.assembly.load import load
from sluice.config import ConfigError, EngineConfig
from sluice.llm.outputs import Result

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
CACHED = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPTS = [tiny_models.prompt(70, 1), tiny_models.prompt(33, 2), tiny_models.prompt(100, 3)]
LONG = tiny_models.prompt(450, 1)
HEAD_DIM = 16
each_backend = pytest.mark.parametrize("backend", ["native", "reference"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama(head_dim=HEAD_DIM).save_pretrained(folder)
    return folder


def engine(folder: Path, **options: Any) -> LLM:
    sizes = {"page_size": 16, "max_total_tokens": 1024, "dtype": "bfloat16", "device": "cpu"}
    return LLM(folder, **(sizes | {"kv_cache_dtype": "int8"} | options))


def answers(results: list[Result]) -> list[tuple[int, ...]]:
    return [tuple(result.token_ids) for result in results]


def scores(results: list[Result]) -> list[float]:
    return [each.logprob for result in results for each in result.prompt_logprobs or () if each is not None]


@each_backend
def test_a_token_takes_what_is_planned(folder: Path, backend: str) -> None:
    options = {"model": str(folder), "page_size": 16, "max_total_tokens": 256, "attention_backend": backend}
    wide, narrow = (
        load(EngineConfig.from_options(options | {"dtype": "bfloat16", "kv_cache_dtype": kind}), progress=False)
        for kind in ("auto", "int8")
    )
    share = (HEAD_DIM + 4) / (2 * HEAD_DIM)
    assert narrow.info.token_bytes == share * wide.info.token_bytes
    assert narrow.runner().footprint().pool_bytes == share * wide.runner().footprint().pool_bytes


@each_backend
def test_the_answer_is_nearly_that_of_wide_pages(folder: Path, backend: str) -> None:
    found = []
    for kind in ("auto", "int8"):
        with engine(folder, attention_backend=backend, kv_cache_dtype=kind, dtype="float32") as llm:
            found.append(scores(llm.generate(PROMPTS, GREEDY)))
    differences = [abs(a - b) for a, b in zip(*found, strict=True)]
    assert 0 < sum(differences) / len(differences) < 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"chunked_prefill_size": 16},
        {"schedule": "prefill-first", "chunked_prefill_size": 48},
        {"max_total_tokens": 176, "chunked_prefill_size": 32},
        {"depth": 2, "lookahead": 1},
        {"model_impl": "transformers"},
        {"threads": 1},
    ],
    ids=str,
)
def test_however_it_is_computed(folder: Path, options: dict[str, Any]) -> None:
    """Chunks, a preemption that computes tokens again, and steps that are replayed store the same numbers."""
    with engine(folder, dtype="float32") as llm:
        expected = llm.generate(PROMPTS, CACHED)
    with engine(folder, dtype="float32", **options) as llm:
        assert answers(llm.generate(PROMPTS, CACHED)) == answers(expected)
        again = llm.generate(PROMPTS, CACHED)
    assert answers(again) == answers(expected)


@each_backend
def test_pages_come_back_from_a_disk_with_their_scales(folder: Path, backend: str, tmp_path: Path) -> None:
    """Also in the next engine; one with wide pages starts the file empty."""
    small = {"max_total_tokens": 128, "kv_disk": tmp_path / "pages", "kv_disk_bytes": 1_000_000}
    with engine(folder, attention_backend=backend) as llm:
        expected = [answers(llm.generate([prompt], CACHED)) for prompt in PROMPTS]
    for _ in range(2):
        with engine(folder, attention_backend=backend, **small) as llm:
            assert [answers(llm.generate([prompt], CACHED)) for prompt in PROMPTS] == expected
            again = [llm.generate([prompt], CACHED) for prompt in PROMPTS]
        assert [answers(results) for results in again] == expected
        assert [results[0].num_cached_tokens for results in again] == [64, 32, 96]
    with engine(folder, attention_backend=backend, kv_cache_dtype="auto", **small) as llm:
        assert llm.generate([PROMPTS[0]], CACHED)[0].num_cached_tokens == 0


def test_a_context_longer_than_the_pool(folder: Path, tmp_path: Path) -> None:
    """Blocks of the ring are attended to with their scales."""
    with engine(folder, dtype="float32") as llm:
        expected = llm.generate([LONG], CACHED)
    small = {"max_total_tokens": 256, "kv_disk": tmp_path / "pages", "kv_disk_bytes": 8 << 20, "ring_block_tokens": 32}
    with engine(folder, dtype="float32", chunked_prefill_size=32, **small) as llm:
        found = llm.generate([LONG], CACHED)
        report = llm.memory_report()
    assert answers(found) == answers(expected)
    assert report["pool_bytes"] == 256 * 3 * 2 * 2 * (HEAD_DIM + 4)


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_backends_of_gpus_refuse_it(backend: str) -> None:
    options = {"device": "cpu", "kv_cache_dtype": "int8", "attention_backend": backend}
    with pytest.raises(ConfigError, match=rf"--attention-backend {backend}|int8 needs --attention-backend native or"):
        resolve_here(EngineConfig.from_options(options))


def test_it_is_listed() -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype must be one of auto, int8, .*, got 'int4'"):
        resolve_here(EngineConfig.from_options({"device": "cpu", "kv_cache_dtype": "int4"}))
