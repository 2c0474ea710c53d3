"""`sluice models`: which of the downloaded models Sluice can serve, and the command for each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from gguf_makers import write_gguf
from random_checkpoint import random_checkpoint
from sluice import cli
from sluice.cli.models.cached import cached_models
from sluice.models.default_model import NAME
from tokenizer_makers import byte_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Edit = Callable[[Path], object]
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def cached(cache: Path, name: str, source: Path, *edits: Edit, branch: str | None = "main") -> Path:
    """Put a folder into a cache, in the layout of the hub's client. Returns the snapshot."""
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    (home / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        blob = home / "blobs" / file.name
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    if branch is not None:
        (home / "refs").mkdir()
        (home / "refs" / branch).write_text(COMMIT)
    for edit in edits:
        edit(snapshot)
    return snapshot


def without(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def config(**fields: object) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text())
        path.unlink()
        path.write_text(json.dumps(content | fields))

    return edit


def rename(name: str, other: str) -> Edit:
    return lambda folder: (folder / name).rename(folder / other)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_models.qwen3().save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


SAFETENSORS = "model.safetensors"


@pytest.mark.parametrize(
    ("edits", "problem", "note"),
    [
        ([], None, None),
        ([without("tokenizer.json")], "it has no tokenizer", None),
        ([without("config.json")], "holds no config.json", None),
        ([without(SAFETENSORS)], None, "its weights are not all here"),
        ([rename(SAFETENSORS, "pytorch_model.bin")], "only pickled weights", None),
        ([config(architectures=["WhisperForConditionalGeneration"])], "no language model that writes text", None),
        ([config(architectures=["PhiForCausalLM"])], None, "through transformers"),
        (
            [config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})],
            "'bitsandbytes' is not supported",
            None,
        ),
        ([config(num_experts=8)], "num_experts = 8 is not supported", None),
        ([config(num_key_value_heads=3)], "num_key_value_heads", None),
    ],
)
def test_a_model_that_was_downloaded(
    edits: list[Edit], problem: str | None, note: str | None, qwen3: Path, tmp_path: Path
) -> None:
    """The server's own reason, without a wait for the weights."""
    snapshot = cached(tmp_path, "Qwen/Tiny", qwen3, *edits)
    (found,) = cached_models(tmp_path)
    assert found.id == "Qwen/Tiny"
    assert found.arguments == ["Qwen/Tiny"]
    assert (problem is None) == (found.verdict.problem is None), found.verdict
    assert (problem or "") in (found.verdict.problem or "")
    assert (note is None) == (found.verdict.note is None), found.verdict
    assert (note or "") in (found.verdict.note or "")
    assert str(snapshot) not in str(found.verdict), "a folder of a hundred characters hides the reason"


def test_another_revision_is_named(qwen3: Path, tmp_path: Path) -> None:
    """The command would download the main branch."""
    cached(tmp_path, "Qwen/Tiny", qwen3, branch=None)
    (found,) = cached_models(tmp_path)
    assert found.arguments == ["Qwen/Tiny", "--revision", COMMIT]


def test_the_main_branch_is_looked_at(qwen3: Path, tmp_path: Path) -> None:
    """The command serves that branch, and a newer revision may be another model."""
    snapshot = cached(tmp_path, "Qwen/Tiny", qwen3)
    other = snapshot.with_name("f" * 40)
    other.mkdir()
    (other / "config.json").write_text("{}")
    (found,) = cached_models(tmp_path)
    assert (found.folder.name, found.revision, found.verdict.problem) == (COMMIT, None, None)


def test_gguf_files_are_listed_one_by_one(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tiny_models.llama().save_pretrained(source)
    files = tmp_path / "files"
    files.mkdir()
    for kind in ("F16", "Q8_0"):
        made, _ = write_gguf(source, tmp_path / f"tiny-{kind}.gguf", kind)
        made.rename(files / made.name)
    (files / "mmproj-F16.gguf").touch()
    (files / "tiny-Q2_K.gguf").write_bytes(b"GGUF, cut off")
    cached(tmp_path / "cache", "owner/tiny-GGUF", files)
    found = {model.id: model for model in cached_models(tmp_path / "cache")}
    assert list(found) == [f"owner/tiny-GGUF:tiny-{kind}.gguf" for kind in ("F16", "Q2_K", "Q8_0")]
    assert found["owner/tiny-GGUF:tiny-Q8_0.gguf"].verdict == ("GGUF, Q8_0 (20), F16 (3)", None, None)
    assert found["owner/tiny-GGUF:tiny-Q2_K.gguf"].verdict.problem is not None
    assert found["owner/tiny-GGUF:tiny-F16.gguf"].bytes == (files / "tiny-F16.gguf").stat().st_size


def test_the_table(qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached(tmp_path, "Qwen/Tiny", qwen3)
    cached(tmp_path, "Qwen/Broken", qwen3, without("tokenizer.json"))
    (tmp_path / "datasets--owner--words" / "snapshots").mkdir(parents=True)
    assert cli.main(["models", "--download-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (tiny,) = [line for line in out.splitlines() if line.startswith("Qwen/Tiny")]
    assert tiny.endswith(f"serve Qwen/Tiny --download-dir {tmp_path}")
    (broken,) = [line for line in out.splitlines() if line.startswith("Qwen/Broken")]
    assert broken.endswith("no: it has no tokenizer")
    assert "words" not in out
    assert "Qwen/Qwen3-0.6B" in out, "something to begin with"
    assert cli.main(["models", "--download-dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(model["id"], model["can_be_served"]) for model in found["cached"]] == [
        ("Qwen/Broken", False),
        ("Qwen/Tiny", True),
    ]
    assert found["suggested"][1]["weights_bytes"]["int8"] == pytest.approx(633e6, rel=0.01)


def test_the_default_model_is_served_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lies in no folder that the list is of."""
    file, _ = write_gguf(random_checkpoint(tmp_path), tmp_path / "tiny.gguf", "Q8_0")
    monkeypatch.setattr("sluice.cli.models.cached.default_file", lambda cache: file)
    assert cli.main(["models", "--memory-bandwidth", "20"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith(NAME)]
    assert line.endswith(" serve")
    assert "Q8_0" in line


def test_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--download-dir", str(tmp_path / "nothing")]) == 0
    assert capsys.readouterr().out.startswith(f"No model in {tmp_path / 'nothing'}.")
    (tmp_path / "file").touch()
    assert cli.main(["models", "--download-dir", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
