"""Finding a checkpoint: folders, hub ids, and errors of the hub, over HTTP to a hub of a few files."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import tiny_models
from gguf_makers import write_gguf
from hub_server import running_hub
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.safetensors": b"twice",
    "README.md": b"words",
}
GGUF_FILES = {
    "tiny-Q4_K_M.gguf": b"",
    "tiny-Q8_0.gguf": b"",
    "tiny-Q4_K.gguf": b"",
    "mmproj-Q8_0.gguf": b"",
    "mtp-tiny-Q4_K_M.gguf": b"",
    "tiny-eagle3-Q4_K_M.gguf": b"",
    "F16/tiny-F16-00001-of-00002.gguf": b"",
    "F16/tiny-F16-00002-of-00002.gguf": b"",
    "README.md": b"words",
    "tokenizer.json": b"{}",
}
TALKING_FILES = FILES | {
    "additional_chat_templates/tool_use.jinja": b"tools",
    "adapter/model.safetensors": b"twice",
    "assistant/model.safetensors": b"twice",
}
REPOSITORIES = {"owner/tiny": FILES, "owner/tiny-GGUF": GGUF_FILES, "owner/talking": TALKING_FILES}


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow requests even under HF_HUB_OFFLINE=1: the hub is in this process."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """Run a hub, and return its address."""
    with running_hub(REPOSITORIES) as url:
        yield url


def test_further_chat_templates_come_too(hub: str, tmp_path: Path) -> None:
    """They lie in a folder, and other folders hold weights that are not wanted."""
    folder = resolve_checkpoint("owner/talking", endpoint=hub, cache=tmp_path)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"additional_chat_templates"}
    assert (folder / "additional_chat_templates" / "tool_use.jinja").is_file()


def test_a_revision(hub: str, tmp_path: Path) -> None:
    folder = resolve_checkpoint("owner/tiny", revision="v2", endpoint=hub, cache=tmp_path, weights=False)
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json"}
    with pytest.raises(CheckpointError, match="'owner/tiny' has no revision 'v3' on the hub"):
        resolve_checkpoint("owner/tiny", revision="v3", endpoint=hub, cache=tmp_path)


def test_a_revision_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--revision v2 needs a model on the hub"):
        resolve_checkpoint(str(tmp_path), revision="v2")


def test_existing_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def test_downloads_json_safetensors_and_tokenizer_only(hub: str, tmp_path: Path) -> None:
    """Pickled weights are never downloaded, and duplicates only once."""
    folder = resolve_checkpoint("owner/tiny", endpoint=hub, cache=tmp_path)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_folder_goes_before_the_hub(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("owner/tiny", endpoint=hub) == Path("owner/tiny")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the hub's GGUF files contents: each has a context of its own, by which it is known again."""
    source = tmp_path_factory.mktemp("gguf")
    for context, name in enumerate((n for n in GGUF_FILES if n.endswith(".gguf") and "/" not in n), 101):
        tiny_models.llama(max_position_embeddings=context).save_pretrained(source / name)
        GGUF_FILES[name] = write_gguf(source / name, source / f"{name}.file", "F16")[0].read_bytes()
    tiny_models.llama(max_position_embeddings=200).save_pretrained(source / "split")
    first, _ = write_gguf(source / "split", source / "tiny-F16.gguf", "F16", split=20)
    for part in first.parent.glob("tiny-F16-*.gguf"):
        assert f"F16/{part.name}" in GGUF_FILES
        GGUF_FILES[f"F16/{part.name}"] = part.read_bytes()


CONTEXTS = {"tiny-Q4_K_M.gguf": 101, "tiny-Q8_0.gguf": 102, "tiny-Q4_K.gguf": 103}


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("owner/tiny-GGUF", "tiny-Q4_K_M.gguf"),
        ("owner/tiny-GGUF:q8_0", "tiny-Q8_0.gguf"),
        ("owner/tiny-GGUF:Q4_K", "tiny-Q4_K.gguf"),
        ("owner/tiny-GGUF:tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
    ],
)
def test_one_file_of_a_repository_of_gguf_files(
    model: str, file: str, hub: str, weights: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them are a hundred gigabytes; one of another size than the user chose is another model."""
    with caplog.at_level("INFO", "sluice"):
        folder = resolve_checkpoint(model, endpoint=hub, cache=tmp_path)
    assert f"owner/tiny-GGUF: of its 4 GGUF files {file} is loaded" in caplog.text
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == CONTEXTS[file]
    assert (folder / "tokenizer.json").read_text() == "{}"  # the repository's, not one made of the file
    assert [path.name for path in tmp_path.glob("**/snapshots/*/*.gguf")] == [file]


def test_all_parts_of_a_split_file(hub: str, weights: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in a folder of the repository, and are found there without a connection, too."""
    folder = resolve_checkpoint("owner/tiny-GGUF:F16", endpoint=hub, cache=tmp_path)
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 200
    assert sorted(path.name for path in tmp_path.glob("**/snapshots/*/F16/*")) == [
        "tiny-F16-00001-of-00002.gguf",
        "tiny-F16-00002-of-00002.gguf",
    ]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_checkpoint("owner/tiny-GGUF:F16", cache=tmp_path) == folder


def test_a_gguf_file_without_a_connection(
    hub: str, weights: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ran yesterday must start when the hub is away."""
    first = resolve_checkpoint("owner/tiny-GGUF:Q8_0", endpoint=hub, cache=tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_checkpoint("owner/tiny-GGUF:Q8_0", cache=tmp_path) == first


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            "owner/tiny-GGUF:Q2_K",
            r"has no GGUF file for 'Q2_K'; its files: F16/tiny-F16-00001-of-00002.gguf, tiny-Q4_K",
        ),
        ("owner/tiny:Q8_0", "has no GGUF file for 'Q8_0'; its files: none"),
        (
            "owner/tiny-GGUF:tiny-F16-00002-of-00002.gguf",
            "is one of several parts: name the first one, owner/tiny-GGUF:tiny-F16-00001-of-00002.gguf",
        ),
    ],
)
def test_a_gguf_file_that_is_not_there(model: str, reason: str, hub: str, tmp_path: Path) -> None:
    """Projectors, and models that guess for another one, are not served by themselves."""
    with pytest.raises(CheckpointError, match=reason):
        resolve_checkpoint(model, endpoint=hub, cache=tmp_path)


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "a/b/c", "~/nowhere-at-all"])
def test_missing_folder(model: str) -> None:
    """A path with a typo must not become a request to the hub."""
    with pytest.raises(CheckpointError, match=f"no file or folder '{model}'"):
        resolve_checkpoint(model)


@pytest.mark.parametrize("model", ["nope.gguf", "./nope.gguf", "here/nope.gguf", "/no/where/nope.gguf"])
def test_missing_gguf_file(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"there is no file (or folder )?'{model}'$"):
        resolve_checkpoint(model)


def test_file_instead_of_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match="is another file"):
        resolve_checkpoint(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("model", ["not a name", "x--y", "-x"])
def test_impossible_name(model: str, hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        resolve_checkpoint(model, endpoint=hub, cache=tmp_path)


def test_unknown_model(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'owner/unknown' is neither .* nor a model on the hub"):
        resolve_checkpoint("owner/unknown", endpoint=hub, cache=tmp_path)


def test_hub_in_trouble(hub: str, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="'owner/broken' is not a local file or folder and could not be downloaded"
    ):
        resolve_checkpoint("owner/broken", endpoint=hub, cache=tmp_path)


def test_no_connection(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(
        CheckpointError, match=r"'tiny' is not .* the hub: it cannot be reached \(Connection refused\): check the net"
    ) as caught:
        resolve_checkpoint("tiny", endpoint=f"http://127.0.0.1:{port}", cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; ids on the hub are like Qwen/Qwen3-0.6B")
