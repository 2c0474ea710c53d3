"""The ITL target that a server has by default, where chunks can be divided among steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny_models
from sluice import LLM
from sluice.assembly.load import load
from sluice.config import EngineConfig, SchedulerConfig

SIZES = {"dtype": "float32", "max_total_tokens": 2048, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny_models.llama().save_pretrained(made)
    return made


def scheduler_of(folder: Path, **options: Any) -> SchedulerConfig:
    config = EngineConfig.from_options({"model": str(folder), **SIZES, **options})
    return load(config, progress=False).info.config.scheduler


def test_a_prompt_slows_streams_to_an_eighth_and_no_further(folder: Path) -> None:
    found = scheduler_of(folder, max_running_requests=8)
    assert (found.itl_target, found.sliced_chunk_size) == ("8x", 2048)
    assert found.limits().itl_target == -8
    assert found.chunked_prefill_size == 4 * scheduler_of(folder, itl_target="off").chunked_prefill_size  # type: ignore[operator]
    assert found.max_batch_tokens == found.chunked_prefill_size + 8  # type: ignore[operator]


@pytest.mark.parametrize(
    "options",
    [
        {"itl_target": "off"},
        {"chunked_prefill_size": 64},
        {"chunked_prefill_size": -1},
        {"max_batch_tokens": 100},
        {"schedule": "prefill-first"},
        {"schedule_policy": "deadline"},
        {"dynamic_chunking": 0},
        {"sliced_chunk_size": 0},
        {"long_prefill_token_threshold": 64},
        {"model_impl": "transformers"},
        {"pp_size": 2},
    ],
    ids=str,
)
def test_what_was_asked_for_is_kept(folder: Path, options: dict[str, Any]) -> None:
    """A target would size the chunks in another way, or be refused for what the user never asked for."""
    found = scheduler_of(folder, **options)
    assert found.limits().itl_target == 0
    assert found.sliced_chunk_size == 0
    assert "chunked_prefill_size" in options or found.chunked_prefill_size in (100, 128, 256)


def test_a_target_that_is_set_is_kept(folder: Path) -> None:
    assert scheduler_of(folder, itl_target="150ms").itl_target == "150ms"


def test_a_batch_in_a_program_has_none(folder: Path) -> None:
    """Nobody reads its answers while they are made, and shorter steps would make them later."""
    with LLM(folder, **SIZES) as llm:
        assert llm.info.config.scheduler.limits().itl_target == 0
