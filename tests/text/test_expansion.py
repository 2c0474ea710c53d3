"""A tokenizer whose normalizer multiplies its text is refused when it is loaded."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers

from sluice.text.expansion import MOST, expansion
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import load_tokenizer
from tokenizer_makers import byte_level_bpe

TENFOLD = normalizers.Replace("a", "a" * 10)
SPACE = "\u2581"


def saved(folder: Path, normalizer: normalizers.Normalizer) -> Path:
    backend = byte_level_bpe()
    backend.normalizer = normalizer
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace("a", "b" * 100_000),
        normalizers.Replace(Regex(""), "b" * 100),
        normalizers.Prepend("b" * 100_000),
        normalizers.Sequence([TENFOLD, TENFOLD]),
        normalizers.Sequence([normalizers.Sequence([TENFOLD]), normalizers.NFC(), TENFOLD]),
    ],
    ids=["a long text", "between all characters", "before the text", "twice", "nested"],
)
def test_a_tokenizer_that_multiplies_its_text_is_refused(tmp_path: Path, normalizer: normalizers.Normalizer) -> None:
    """Each short text took a second of all streams, and megabytes."""
    with pytest.raises(TokenizerError, match=rf"normalizer makes \d+ characters of one; at most {MOST} are accepted"):
        load_tokenizer(saved(tmp_path, normalizer))


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")]),
        normalizers.Replace("``", '"'),
    ],
    ids=["SentencePiece", "Unicode", "quotes"],
)
def test_what_published_tokenizers_do_is_accepted(tmp_path: Path, normalizer: normalizers.Normalizer) -> None:
    assert load_tokenizer(saved(tmp_path, normalizer)).encode("a b") != []


def test_the_longest_text_of_a_table_counts() -> None:
    """The table of SentencePiece: the length of a trie, the trie, and the texts that it leads to."""
    table = (4).to_bytes(4, "little") + b"\0\0\0\0" + b"a\0" + "\u0644\u0627".encode() + b"\0" + b"abc" * 30 + b"\0"
    assert expansion({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}) == 90
