"""Options that choose the parts of a checkpoint: its revision and folder, its tokenizer, its context, its seeds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams, cli
from sluice.assembly import load
from sluice.config import ConfigError
from sluice.models.checkpoint import CheckpointError
from sluice.types.request_limits import LimitError

IDS = [7, 8, 9, 300]
SAMPLED = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


def test_a_shorter_context_is_a_limit(folder: Path) -> None:
    with LLM(folder, max_model_len=24, max_running_requests=2) as llm:
        assert llm.info.limits.max_request_tokens == 24
        assert llm.info.limits.max_total_tokens == 2 * 32, "the pool holds no more than two requests can use"
        assert len(llm.generate([IDS], SamplingParams(max_tokens=20, ignore_eos=True))[0].token_ids) == 20
        with pytest.raises(LimitError, match=r"25 tokens, but .* context is 24 tokens"):
            llm.generate([IDS], SamplingParams(max_tokens=21))


@pytest.mark.parametrize("length", [1, 1 << 30])
def test_a_context_that_the_model_does_not_have(folder: Path, length: int) -> None:
    with pytest.raises(ConfigError, match=rf"--context-length must be from 2 to the model's context .* got {length}"):
        LLM(folder, context_length=length)


def test_a_seed_for_requests_without_one(folder: Path) -> None:
    def answers(seed: int | None) -> list[tuple[int, ...]]:
        with LLM(folder, max_total_tokens=256, seed=seed) as llm:
            return [result.token_ids for result in llm.generate([IDS, IDS], SAMPLED)]

    first, second = answers(5)
    assert [first, second] == answers(5)
    assert first != second, "each request has a seed of its own"
    assert [first, second] != answers(6)


def test_a_tokenizer_of_its_own(folder: Path, tmp_path: Path) -> None:
    """The model's folder needs none then."""
    bare, other = tmp_path / "bare", tmp_path / "other"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    with LLM(folder, max_total_tokens=256) as own, LLM(bare, tokenizer=other, max_total_tokens=256) as llm:
        greedy = SamplingParams(max_tokens=4, temperature=0.0)
        assert llm.generate("The river", greedy)[0].text == own.generate("The river", greedy)[0].text
        assert llm.info.model == "bare"


def test_downloads_go_where_they_should(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is not reached: what is asked of it is compared."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def resolved(model: str, **options: Any) -> Path:
        options.pop("report", None)
        asked.append((model, options))
        return folder

    monkeypatch.setattr(load, "resolve_checkpoint", resolved)
    given: dict[str, Any] = {"revision": "v2", "download_dir": str(tmp_path), "tokenizer": "owner/words"}
    with LLM("owner/tiny", max_total_tokens=256, **given) as llm:
        assert llm.info.model == "owner/tiny"
    assert asked == [
        ("owner/tiny", {"revision": "v2", "cache": tmp_path}),
        ("owner/words", {"cache": tmp_path, "weights": False}),
    ]


@pytest.fixture(scope="module")
def with_settings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("settings") / "model"
    shutil.copytree(folder, copy)
    settings = {"do_sample": False, "temperature": 0.6, "top_k": 5, "max_new_tokens": 9, "num_beams": 4}
    (copy / "generation_config.json").write_text(json.dumps(settings))
    return copy


def test_the_settings_of_a_model(with_settings: Path, folder: Path) -> None:
    """Greedy, as its file says; a request's own parameters are its own."""
    with LLM(with_settings, max_total_tokens=256) as llm:
        assert (llm.default_sampling.temperature, llm.default_sampling.top_k) == (0.0, 5)
        assert llm.generate([IDS])[0].token_ids == llm.generate([IDS])[0].token_ids
        assert llm.info.reasons["generation_config"] == "temperature 0.0, top_k 5, max_tokens 9"
    for given in ("none", str(folder)):
        with LLM(with_settings, max_total_tokens=256, generation_config=given) as llm:
            assert llm.default_sampling == SamplingParams()


def test_settings_in_place_of_the_models(with_settings: Path) -> None:
    with LLM(with_settings, max_total_tokens=256, override_generation_config='{"temperature": 0.25}') as llm:
        assert (llm.default_sampling.temperature, llm.default_sampling.top_k) == (0.25, 5)


@pytest.mark.parametrize(
    ("overrides", "temperature", "top_k"),
    [
        ('{"do_sample": true}', 0.6, 5),
        ('{"top_k": null}', 0.0, 0),
        ('{"temperature": 0.25, "do_sample": false}', 0.0, 5),
    ],
)
def test_overrides_are_merged_with_the_file(
    with_settings: Path, overrides: str, temperature: float, top_k: int
) -> None:
    with LLM(with_settings, max_total_tokens=256, override_generation_config=overrides) as llm:
        assert (llm.default_sampling.temperature, llm.default_sampling.top_k) == (temperature, top_k)


def test_the_command_line_uses_them_too(with_settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text(*arguments: str) -> str:
        given = ("--prompt", "The river", "--max-tokens", "4", "--max-total-tokens", "256", *arguments)
        assert cli.main(["generate", str(with_settings), *given]) == 0
        return capsys.readouterr().out

    assert text("--seed", "1") == text("--seed", "2"), "greedy"
    assert text("--temperature", "5", "--top-k", "0", "--seed", "1") != text("--seed", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generation_config": "nowhere"}, "--generation-config must be auto, none, or a folder .* got 'nowhere'"),
        ({"override_generation_config": "{"}, "--override-generation-config must be a JSON object, got '{'"),
        ({"override_generation_config": '{"top_k": -7}'}, "--override-generation-config: top_k must be .* got -7"),
        ({"override_generation_config": '{"num_beams": 2}'}, "num_beams is not supported; supported are temperature"),
    ],
)
def test_settings_that_cannot_be_used(folder: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(folder, **options)


def test_settings_that_are_no_settings(with_settings: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(CheckpointError, match=r"temperature must be .* got 'hot'"):
        LLM(with_settings, generation_config=str(tmp_path))
