"""A library of other sources than those beside it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from compiled import library
from sluice.assembly import load as loading
from sluice.assembly.load import load
from sluice.config import EngineConfig
from sluice.kernels.cpu.library import FOLDER, Library
from sluice.kernels.cpu.sources import SUFFIXES, digest_of

COMPILED = library()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout's sources and library, made in the order that leaves the library the older one."""
    native = tmp_path / "src" / "sluice" / "native"
    native.mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    for file in FOLDER.glob("_kernels*"):
        shutil.copy(file, native)
    for file in FOLDER.iterdir():
        if file.suffix in SUFFIXES:
            shutil.copy(file, native)
    return native


def test_a_library_of_these_sources_is_loaded_without_a_word(copy: Path) -> None:
    """A warning in every worktree and container, where files have the times of their copies."""
    assert COMPILED.why_outdated() is None
    assert Library(copy).why_outdated() is None


@pytest.mark.parametrize("name", ["kernels.cpp", "tiles.h"])
def test_a_library_of_other_sources_is_noticed(copy: Path, name: str) -> None:
    """A kernel that was mended and still computes what it did."""
    source = copy / name
    source.write_bytes(source.read_bytes() + b"\n// mended\n")
    why = Library(copy).why_outdated()
    assert why is not None
    assert why.endswith(f"-m pip install -e {copy.parents[2]}")
    (copy.parents[2] / "setup.py").unlink()
    assert str(Library(copy).why_outdated()).endswith("-m pip install --force-reinstall --no-deps sluice-llm")
    source.unlink()
    assert Library(copy).why_outdated() is not None


def test_without_sources_there_is_nothing_to_compare(copy: Path) -> None:
    """A warning for every user of a package without them, who could do nothing about it."""
    for file in copy.iterdir():
        if file.suffix in SUFFIXES:
            file.unlink()
    assert digest_of(copy) == ""
    assert Library(copy).why_outdated() is None


def test_each_engine_warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A warning that goes unseen, as it is kept in a property; or is repeated for every use of the library."""
    monkeypatch.setattr(Library, "why_outdated", lambda self: "the compiled kernels are old")
    options = {"max_total_tokens": 64, "page_size": 16, "device": "cpu"}
    with caplog.at_level(logging.WARNING, loading.LOGGER.name):
        load(EngineConfig.from_options(options), progress=False)
    assert caplog.messages.count("the compiled kernels are old") == 1
