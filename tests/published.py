"""Files from the source archive of `llama-cpp-python`, which the index of packages has: vocabularies and templates.

The archive is fetched once; what a test needs of it is kept in the cache of `huggingface_hub`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
FOLDER = f"{ARCHIVE.removesuffix('.tar.gz')}/vendor/llama.cpp/models/"


def published(kind: str, is_wanted: Callable[[str], bool], *, fetches: bool = True) -> Path:
    """Return a folder with files of the archive; skip the test if they cannot be had.

    Args:
        kind: names the folder.
        is_wanted: whether a file is, by its path in the archive's folder of models.
        fetches: fetch the archive where the files are not in the cache.
    """
    folder = huggingface_hub.cached_assets_path("sluice-tests", kind, SHA256[:16])
    if (folder / "whole").exists():
        return folder
    if not fetches:
        pytest.skip("the archive was not fetched: make test-all does it")
    archive = _fetched(folder)
    with tarfile.open(archive) as opened:
        for member in opened:
            name = member.name.removeprefix(FOLDER)
            source = opened.extractfile(member) if member.isfile() and is_wanted(name) else None
            if source is not None:
                (folder / Path(name).name).write_bytes(source.read())
    archive.unlink()
    (folder / "whole").touch()
    return folder


def _fetched(folder: Path) -> Path:
    """Return the archive, which is checked and not built."""
    archive = folder / ARCHIVE
    if not archive.exists():
        asked = ["--no-deps", "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36", "--dest", str(folder)]
        quick = ["--quiet", "--retries", "0", "--timeout", "20"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *quick, *asked], capture_output=True, check=False
        )
        if done.returncode or not archive.exists():
            pytest.skip("the index of packages cannot be reached")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    return archive
