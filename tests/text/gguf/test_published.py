"""The ids of llama.cpp's own test vocabularies, of which fifteen come with the ids that are expected.

The files lie in the source archive of `llama-cpp-python`, which the index of packages has. The test fetches it once and
keeps it in the cache of `huggingface_hub`; without a connection it is skipped.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import huggingface_hub
import pytest
import tokenizers

from sluice.text.gguf.tokenizer import gguf_tokenizer

ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
FOLDER = f"{ARCHIVE.removesuffix('.tar.gz')}/vendor/llama.cpp/models/"
NAMES = (
    *(
        "bert-bge",
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
    ),
    *("mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
BETWEEN = "\n__ggml_vocab_test__\n"
"""Stands behind each text."""


@pytest.fixture(scope="module")
def vocabularies() -> Path:
    """The folder of the vocabularies."""
    folder = huggingface_hub.cached_assets_path("sluice-tests", "gguf", SHA256[:16])
    if not (folder / "whole").exists():
        archive = _fetched(folder)
        with tarfile.open(archive) as opened:
            for member in opened:
                name = member.name.removeprefix(FOLDER)
                if member.isfile() and name.startswith("ggml-vocab-") and "/" not in name:
                    source = opened.extractfile(member)
                    assert source is not None
                    (folder / name).write_bytes(source.read())
        archive.unlink()
        (folder / "whole").touch()
    return folder


def _fetched(folder: Path) -> Path:
    """Return the archive, which is checked and not built; skip the test if it cannot be had."""
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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ids(name: str, vocabularies: Path) -> None:
    """Text is cut, normalised and merged as in training, in each of the families."""
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    backend = gguf_tokenizer(path).backend
    plain = tokenizers.Tokenizer(backend.model)  # control tokens are text, as where the ids were computed
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    plain.add_tokens([token for token in backend.get_added_tokens_decoder().values() if not token.special])
    texts = Path(f"{path}.inp").read_text(encoding="utf-8").split(BETWEEN)
    lines = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 46
    for text, line in zip(texts, lines, strict=False):
        assert plain.encode(text, add_special_tokens=False).ids == [int(number) for number in line.split()], repr(text)
