"""Fields of a GGUF file's metadata: each is heeded, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from gguf_makers import write_gguf
from models.formats.loading import assert_same, load
from sluice.assembly.generation_config import sampling_defaults
from sluice.config import ModelConfig
from sluice.models.checkpoint import CheckpointError, read_config
from sluice.models.hub import resolve_checkpoint
from sluice.models.pooling import why_no_embeddings
from sluice.types import SamplingDefaults


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own for every test."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


def saved(family: str, folder: Path, **changes: Any) -> Path:
    """Write a tiny model."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1} | changes
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} if family == "llama" else {}
    getattr(tiny_models, family)(**(rope | sizes)).save_pretrained(folder)
    return folder


def config_of(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((resolve_checkpoint(str(path)) / "config.json").read_text())
    return config


FACTOR = {"rope.scaling.factor": 4.0}
YARN = FACTOR | {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 128}
ROPES: dict[str, tuple[dict[str, Any], dict[str, Any] | str]] = {
    "factor alone": (FACTOR, {"rope_type": "linear", "factor": 4.0}),
    "old name": ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "none": (FACTOR | {"rope.scaling.type": "none"}, {"rope_type": "default"}),
    "factor 1": ({"rope.scale_linear": 1.0}, {"rope_type": "default"}),
    "no type and no factor": ({"rope.scaling.attn_factor": 1.0}, {"rope_type": "default"}),
    "yarn": (YARN, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
    "yarn with defaults": (
        YARN | {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_ext_factor": 1.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "yarn's attention": (
        YARN | {"rope.scaling.attn_factor": 0.5},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.56931},
    ),
    "attention without yarn": ({"rope.scaling.attn_factor": 0.5}, "rope.scaling.attn_factor must be 1 without yarn"),
    "beta": (YARN | {"rope.scaling.yarn_beta_fast": 16.0}, "llama.rope.scaling.yarn_beta_fast = 16.0 is not supported"),
    "log multiplier": (YARN | {"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier = .* is not supported"),
}


@pytest.mark.parametrize("name", ROPES)
def test_fields_of_the_rotary_embedding(name: str, tmp_path: Path) -> None:
    """As llama.cpp reads them: without a type, a factor counts linearly."""
    fields, wanted = ROPES[name]
    path, _ = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "F16", fields=fields)
    if isinstance(wanted, str):
        with pytest.raises(CheckpointError, match=wanted):
            config_of(path)
        return
    found = config_of(path)["rope_parameters"]
    assert found.pop("rope_theta") == 500.0
    assert found.pop("rope_type") == wanted["rope_type"]
    assert found == pytest.approx({key: each for key, each in wanted.items() if key != "rope_type"}, rel=1e-4)
    load(resolve_checkpoint(str(path)))


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 0.0},
        {"attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0, "nextn_predict_layers": 0},
        {"attention.scale": 0.35355338},
    ],
)
def test_fields_that_change_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    path, _ = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "F16", fields=fields)
    load(resolve_checkpoint(str(path)))


ARRAYS: dict[str, tuple[dict[str, Any], str | None]] = {
    "equal": ({"attention.head_count_kv": [2, 2], "feed_forward_length": [64, 64]}, None),
    "different": ({"attention.head_count_kv": [2, 4]}, r"head_count_kv has 2 to 4: layers that differ are not support"),
    "too short": ({"feed_forward_length": [64]}, r"must be a number, or one for each of 2 layers, got an array of 1"),
    "texts": ({"attention.head_count": ["4", "4"]}, r"head_count must be an integer of at least 1, got an array of 2"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_for_each_layer(name: str, tmp_path: Path) -> None:
    """Converters write them for every model of an architecture of which some models have layers that differ."""
    fields, problem = ARRAYS[name]
    source = saved("llama", tmp_path / "source", num_hidden_layers=2)
    path, plain = write_gguf(source, tmp_path / "model.gguf", "F16", fields=fields)
    if problem is None:
        assert_same(load(resolve_checkpoint(str(path)), dtype="bfloat16"), load(plain, dtype="bfloat16"))
        return
    with pytest.raises(CheckpointError, match=problem):
        resolve_checkpoint(str(path))


@pytest.mark.parametrize(("kind", "problem"), [(0, None), (3, None), (1, "by mean"), (2, "by cls"), (4, "by rank")])
def test_pooling(kind: int, problem: str | None, tmp_path: Path) -> None:
    """Vectors of another kind would have the right form and the wrong content."""
    source = saved("qwen3", tmp_path / "source")
    path, _ = write_gguf(source, tmp_path / "model.gguf", "F16", fields={"pooling_type": kind})
    folder = resolve_checkpoint(str(path))
    found = why_no_embeddings(folder)
    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")
    load(folder)


def test_sampling_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are the defaults of requests, unless a file beside says otherwise."""
    settings = {"temp": 0.5, "top_k": 20, "penalty_repeat": 1.25, "mirostat": 2}
    source = saved("qwen3", tmp_path / "source")
    general = {f"general.sampling.{name}": each for name, each in settings.items()}
    path, _ = write_gguf(source, tmp_path / "model.gguf", "F16", general=general)
    folder = resolve_checkpoint(str(path))
    defaults = sampling_defaults(ModelConfig(), folder)
    assert defaults == SamplingDefaults(temperature=0.5, top_k=20, repetition_penalty=1.25)
    assert "model.gguf: general.sampling.mirostat = 2 is not used" in caplog.text
    assert read_config(folder).eos_token_ids == read_config(source).eos_token_ids
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.75}')
    assert sampling_defaults(ModelConfig(), resolve_checkpoint(str(path))) == SamplingDefaults(temperature=0.75)
    (tmp_path / "generation_config.json").unlink()
    path, _ = write_gguf(source, tmp_path / "other.gguf", "F16", general={"general.sampling.temp": "hot"})
    with pytest.raises(CheckpointError, match=r"general\.sampling\.temp must be a number, got 'hot'"):
        resolve_checkpoint(str(path))
