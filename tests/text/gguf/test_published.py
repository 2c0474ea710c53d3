"""The ids of llama.cpp's own test vocabularies, of which fifteen come with the ids that are expected."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from published import published
from sluice.text.gguf.tokenizer import gguf_tokenizer

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
    return published("gguf", lambda name: name.startswith("ggml-vocab-") and "/" not in name)


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
