"""Streamed text has no partial characters, and equals the text of all tokens decoded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from sluice.text.detokenizer import Detokenizer
from sluice.text.tokenizer import Tokenizer, TokenizerError
from tokenizer_makers import EOS, byte_fallback_bpe, byte_level_bpe, byte_tokenizer, metaspace_bpe

BYTE_LEVEL = byte_level_bpe()
BYTE_FALLBACK = byte_fallback_bpe()
METASPACE = metaspace_bpe()

SNIPPETS = [
    "the",
    " water",
    " gate",
    " ",
    "  ",
    "水門",
    "🙂",
    "👩\u200d👩\u200d👧",
    "e\u0301",
    "▁",
    "\n",
    "<0x41>",
    "né",
]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(st.sampled_from(SNIPPETS) | CHARACTERS, max_size=8).map("".join)
"""Ordinary and unusual text."""


def deltas(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def random_ids(backend: tokenizers.Tokenizer) -> st.SearchStrategy[list[int]]:
    """Return a strategy for ids, some beyond the tokenizer's (a model's vocabulary is often padded)."""
    return st.lists(st.integers(0, backend.get_vocab_size() + 3), max_size=30)


@pytest.mark.parametrize("backend", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte-level", "byte-fallback"])
@given(text=TEXT)
def test_text_is_restored_without_partial_characters(backend: tokenizers.Tokenizer, text: str) -> None:
    """An emoji of several tokens must not become U+FFFD."""
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode(text)
    pieces = deltas(tokenizer.detokenizer(), ids)
    assert "".join(pieces) == text.replace("▁", " " if backend is BYTE_FALLBACK else "▁")
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


@pytest.mark.parametrize("backend", [BYTE_LEVEL, METASPACE], ids=["byte-level", "metaspace"])
@given(data=st.data())
def test_any_ids_decode_as_the_library_decodes_them(backend: tokenizers.Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(random_ids(backend))
    assert "".join(deltas(Tokenizer(backend).detokenizer(), ids)) == backend.decode(ids)


@given(st.lists(st.integers(259, BYTE_FALLBACK.get_vocab_size() + 3) | st.integers(3, 2 + 128), max_size=30))
def test_byte_fallback_ids_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    """Malformed byte runs are excluded: the library decodes them differently (see the module)."""
    assert "".join(deltas(Tokenizer(BYTE_FALLBACK).detokenizer(), ids)) == BYTE_FALLBACK.decode(ids)


@given(random_ids(BYTE_FALLBACK))
def test_decode_equals_the_stream(ids: list[int]) -> None:
    """A response must be the same with and without streaming."""
    tokenizer = Tokenizer(BYTE_FALLBACK)
    assert "".join(deltas(tokenizer.detokenizer(), ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("backend", [BYTE_LEVEL, BYTE_FALLBACK, METASPACE], ids=["level", "fallback", "metaspace"])
@given(prompt=TEXT, text=TEXT)
def test_a_text_continues_its_prompt(backend: tokenizers.Tokenizer, prompt: str, text: str) -> None:
    """The space between a prompt's last word and the first generated word must not be lost."""
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode(prompt + text)
    for cut in range(len(ids) + 1):
        head = tokenizer.decode(ids[:cut])
        if not head.endswith("\ufffd"):
            assert head + "".join(deltas(tokenizer.detokenizer(ids[:cut]), ids[cut:])) == tokenizer.decode(ids)


def test_a_character_begun_by_the_prompt_is_finished() -> None:
    """Prompts of token ids may end inside a character."""
    tokenizer = Tokenizer(byte_tokenizer())
    emoji = list("🙂".encode())
    assert deltas(tokenizer.detokenizer(emoji[:3]), [emoji[3], 65]) == ["🙂", "A", ""]


def test_an_unfinished_character_is_shown_only_at_the_end() -> None:
    detokenizer = Tokenizer(byte_tokenizer()).detokenizer()
    assert deltas(detokenizer, list("🙂".encode())[:3]) == ["", "", "", "\ufffd"]


def test_special_tokens_are_not_text() -> None:
    backend = byte_tokenizer()
    eos = backend.token_to_id(EOS)
    assert Tokenizer(backend).decode([65, eos, 66]) == "AB"


@pytest.mark.parametrize(
    "decoder",
    [
        lambda: decoders.WordPiece(),
        lambda: decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    ],
    ids=["WordPiece", "strips two"],
)
def test_an_unknown_decoder_is_refused(decoder: Callable[[], decoders.Decoder]) -> None:
    """A wrong guess would garble text silently."""
    backend = byte_tokenizer()
    backend.decoder = decoder()
    with pytest.raises(TokenizerError, match=r"not supported; accepted are ByteLevel"):
        Tokenizer(backend)
