"""Decodes token ids to text one at a time.

A token stands for a few bytes, and the text is these bytes decoded as UTF-8. The only state is therefore that of an
incremental UTF-8 decoder: at most three bytes of an unfinished character. The cost of a token does not depend on the
length of the text.

Which bytes a token stands for depends on the tokenizer's decoder; `spelling_of` supports the decoders that language
models use. The result equals that of the `tokenizers` library with one exception. For a byte-fallback tokenizer, the
library replaces all bytes of a run of byte tokens if any of them is malformed, which is known only at the end of the
run. Here only the malformed bytes are replaced, so that text made of byte tokens can be streamed.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MAX_CHARACTER_BYTES = 4
"""Bytes of the longest UTF-8 character."""


class UnsupportedDecoder(ValueError):
    """The decoder in `tokenizer.json` is not supported: its tokens do not each stand for fixed bytes."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are written as bytes: in the middle of a text, and as its first token."""

    inner: Callable[[str], bytes]
    first: Callable[[str], bytes]


class Vocabulary:
    """The bytes of each token id. Unknown ids have none, nor have hidden ones: by default, all special tokens."""

    def __init__(
        self,
        spelling: Spelling,
        id_to_token: Callable[[int], str | None],
        special_ids: frozenset[int],
        hidden_ids: frozenset[int] | None = None,
    ) -> None:
        self._spelling = spelling
        self._id_to_token = id_to_token
        self._special_ids = special_ids
        self._hidden_ids = special_ids if hidden_ids is None else hidden_ids
        self._inner: dict[int, bytes] = {}

    def with_special_tokens(self) -> Vocabulary:
        """Return a copy in which special tokens are shown by their names."""
        return Vocabulary(self._spelling, self._id_to_token, self._special_ids, frozenset())

    def showing(self, texts: Collection[str]) -> Vocabulary:
        """Return a copy in which the special tokens with some texts are shown."""
        hidden = frozenset(token for token in self._hidden_ids if self._id_to_token(token) not in texts)
        return Vocabulary(self._spelling, self._id_to_token, self._special_ids, hidden)

    def inner(self, token_id: int) -> bytes:
        """Return the bytes of a token that follows others."""
        piece = self._inner.get(token_id)
        if piece is None:
            piece = self._inner[token_id] = self._spell(token_id, self._spelling.inner)
        return piece

    def first(self, token_id: int) -> bytes:
        """Return the bytes of a token at the beginning of a text."""
        return self._spell(token_id, self._spelling.first)

    def spelled(self, token_id: int) -> bytes | None:
        """Return the bytes of a token that is shown by itself, a special one by its name; None if the id is unknown."""
        token = self._id_to_token(token_id)
        if token is None:
            return None
        return token.encode() if token_id in self._special_ids else self.inner(token_id)

    def shows(self, token_id: int) -> bool:
        """Return whether the token is part of the text."""
        return self._visible(token_id) is not None

    def _spell(self, token_id: int, spell: Callable[[str], bytes]) -> bytes:
        token = self._visible(token_id)
        if token is None:
            return b""
        return token.encode() if token_id in self._special_ids else spell(token)

    def _visible(self, token_id: int) -> str | None:
        return None if token_id in self._hidden_ids else self._id_to_token(token_id)


class Detokenizer:
    """Decodes the tokens of one stream.

    The text continues the `prompt`: `decode(prompt) + pushed text == decode(prompt + pushed ids)`. So a word keeps its
    leading space if the prompt ended with a word.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = any(vocabulary.shows(token) for token in reversed(prompt))
        for token in prompt[-MAX_CHARACTER_BYTES:]:
            self._utf8.decode(vocabulary.inner(token))

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, possibly empty; never a part of a character."""
        if self._begun:
            return self._utf8.decode(self._vocabulary.inner(token_id))
        self._begun = self._vocabulary.shows(token_id)
        return self._utf8.decode(self._vocabulary.first(token_id))

    def flush(self) -> str:
        """Return the end of the text: U+FFFD if the last character is unfinished, otherwise nothing."""
        return self._utf8.decode(b"", final=True)


def decode(vocabulary: Vocabulary, token_ids: Iterable[int]) -> str:
    """Return the text of a list of ids."""
    stream = Detokenizer(vocabulary)
    return "".join([stream.push(token) for token in token_ids]) + stream.flush()


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling:
    """Return how tokens are written as bytes under a `decoder` entry of `tokenizer.json`.

    Raises:
        UnsupportedDecoder: it is not supported; the message names what is.
    """
    if decoder is None:
        return Spelling(inner=lambda token: b" " + token.encode(), first=str.encode)
    if decoder["type"] == "Metaspace":
        return _metaspace(decoder)
    steps = list(_flatten(decoder))
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level()
    return _sentencepiece(steps)


def _flatten(decoder: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _flatten(step)


def _byte_level() -> Spelling:
    table = byte_alphabet()

    def spell(token: str) -> bytes:
        try:
            return bytes([table[char] for char in token])
        except KeyError:  # an added token is plain text
            return token.encode()

    return Spelling(inner=spell, first=spell)


def byte_alphabet() -> dict[str, int]:
    """Return the printable characters with which GPT-2's byte-level BPE writes bytes, and the byte of each.

    Printable Latin-1 characters stand for themselves, the other 68 bytes are written as U+0100 and following.
    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and its released encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


def _metaspace(decoder: Mapping[str, Any]) -> Spelling:
    mark = decoder["replacement"]
    spelling = Spelling(
        inner=lambda token: token.replace(mark, " ").encode(),
        first=lambda token: token.replace(mark, "").encode(),
    )
    never = decoder.get("prepend_scheme") == "never" or decoder.get("add_prefix_space") is False
    return replace(spelling, first=spelling.inner) if never else spelling


def _sentencepiece(steps: Sequence[Mapping[str, Any]]) -> Spelling:
    """Return the spelling under the steps Replace..., ByteFallback, Fuse and Strip of at most one leading character."""
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    strip = b""
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not byte_fallback:
                replacements.append((old, new))
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(content), "start": 1, "stop": 0} if fused and not strip:
                strip = content.encode()
            case _:
                raise _unsupported(step)

    def spell(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        byte = _byte_token(token) if byte_fallback else None
        return token.encode() if byte is None else byte

    return Spelling(inner=spell, first=lambda token: spell(token).removeprefix(strip))


def _byte_token(token: str) -> bytes | None:
    """Return the byte of a token such as "<0xE2>", or None."""
    if len(token) != 6 or not (token.startswith("<0x") and token.endswith(">")):
        return None
    try:
        return bytes.fromhex(token[3:5])
    except ValueError:
        return None


def _unsupported(step: Mapping[str, Any]) -> UnsupportedDecoder:
    return UnsupportedDecoder(
        f"the decoder {dict(step)!r} in tokenizer.json is not supported; accepted are ByteLevel, Metaspace, and"
        " Replace / ByteFallback / Fuse / Strip (one leading character) in this order"
    )
