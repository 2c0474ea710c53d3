"""What the metadata of a GGUF file refuses comes at once: while the engine still starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_models
from gguf_bytes import TEXT, value, write
from gguf_makers import write_gguf
from serve_process import SHADOW, server
from sluice.config import ConfigError, ModelConfig
from sluice.http.base.early_checks import check_model
from sluice.models.checkpoint import CheckpointError


def whole(folder: Path, **fields: object) -> Path:
    tiny_models.llama().save_pretrained(folder / "source")
    return write_gguf(folder / "source", folder / "tiny.gguf", "F16", **fields)[0]


def test_the_metadata_is_checked(tmp_path: Path) -> None:
    file = whole(tmp_path)
    own = tiny_models.llama().config.max_position_embeddings
    check_model(ModelConfig(model=str(file), context_length=own))
    with pytest.raises(ConfigError, match=f"--context-length must be from 2 to the model's context of {own} tokens"):
        check_model(ModelConfig(model=str(file), context_length=own + 1))
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "other.gguf", [("general.architecture", value(TEXT, "mamba"))])
    with pytest.raises(CheckpointError, match=r"general.architecture must be one of .*, got 'mamba'"):
        check_model(ModelConfig(model=str(tmp_path / "folder")))


@pytest.mark.parametrize("model", ["nope.gguf", "./nope", "no/such/folder"])
def test_a_path_that_is_not_there(model: str) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        check_model(ModelConfig(model=model))


@pytest.mark.parametrize("model", ["", "owner/name", "owner/name:Q4_0"])
def test_other_models_are_left_to_the_engine(model: str) -> None:
    check_model(ModelConfig(model=model))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken.gguf", "broken.gguf is not a GGUF file: it does not begin with GGUF"),
        ("unknown.gguf", "unknown.gguf: tokenizer.ggml.pre is 'gpt-9', a rule that is not known"),
    ],
)
def test_a_server_ends_without_its_engine(name: str, problem: str, tmp_path: Path) -> None:
    """The engine loads for ever here."""
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_text("words")
    else:
        path.write_bytes(whole(tmp_path).read_bytes().replace(b"gpt-2", b"gpt-9"))
    with server("-c", SHADOW, str(path), "shadow_engine:hang", json.dumps({"port": 0})) as process:
        _, errors = process.communicate(timeout=60)
    assert errors.startswith(f"sluice: error: {problem}")
    assert errors.count("\n") == 1
    assert process.returncode == 1
