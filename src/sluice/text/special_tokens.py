"""Encodes prompts in which the special tokens of a chat template are spelled as no client can (see `special_text`).

The encoder is the checkpoint's tokenizer with other texts for its special tokens; the two share the model. So text is
cut at the same places, before and behind special tokens too, and what looks like one of them is text.

Some tokenizers (DeepSeek's, Command R's) do not declare all tokens special by which their templates mark turns. So
added tokens that the template's source names count, too, except for tags in pairs (`<think>`, `</think>`), which
messages may hold.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Set

import tokenizers
from tokenizers import AddedToken

from sluice.text.special_text import Spellings, pattern_of

PLANE = 0xF0000
"""A spelling is a secret and a number, in private-use characters from here on, which are part of no token."""
PLANE_SIZE = 0xFFFE
SECRET_LENGTH = 8
"""Characters of nearly 16 bits each."""
BRACKETED = re.compile(r"[<\[{|]\S*[>\]}|]")
"""What a token for structure looks like. Others may be a line break, or a word."""
TAG = re.compile(r"<([\w.:-]+)>")
UNKNOWN = "\U0010fffd"
"""A character that is in no vocabulary."""


class SpecialTokens:
    """The special tokens of a tokenizer, and its encoder for prompts in which they are spelled otherwise.

    Args:
        template: the source of the chat template.
    """

    def __init__(self, backend: tokenizers.Tokenizer, template: str = "") -> None:
        added = backend.get_added_tokens_decoder()
        structure = _structure(template, {token.content for token in added.values()})
        special = {
            number: token
            for number, token in added.items()
            if token.content and (token.special or token.content in structure)
        }
        self._secret = "".join(chr(PLANE + secrets.randbelow(PLANE_SIZE)) for _ in range(SECRET_LENGTH))
        spelled = {token.content: self._secret + chr(PLANE + at) for at, token in enumerate(special.values())}
        normalized = [token.content for token in special.values() if token.normalized]
        is_kept = {text: _is_kept(backend, text, spelled[text]) for text in normalized}
        self.spellings = Spellings(
            _pattern(special),
            spelled,
            self._secret + chr(PLANE + len(special)),
            is_always=backend.normalizer is not None and bool(is_kept) and all(is_kept.values()),
        )
        others = {number: token for number, token in added.items() if number not in special}
        respelled = [_respelled(token, spelled[token.content], is_kept) for token in special.values()]
        self._encoder = _encoder_like(backend)
        self._encoder.add_tokens([*others.values(), *respelled, AddedToken(self.spellings.end, normalized=False)])
        contents = {token.content: number for number, token in others.items()}
        contents |= {spelled[token.content]: number for number, token in special.items()}
        self._ids = {self._encoder.token_to_id(content): [number] for content, number in contents.items()}
        self._ids[self._encoder.token_to_id(self.spellings.end)] = []
        self._ids |= {number: ids for number, ids in _letters(backend, special).items() if number not in self._ids}

    def are_spelled_in(self, text: str) -> bool:
        """Whether `encode` is to encode a text, or a part of one."""
        return self._secret in text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt in which special tokens are spelled as in `spellings`."""
        ids = self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return [number for each in ids for number in self._ids.get(each, (each,))]


def _structure(template: str, added: Set[str]) -> set[str]:
    """Return the tokens, of some that were added, by which a template structures its prompts."""
    named = {text for text in added if BRACKETED.fullmatch(text) and text in template}
    tags = {match[1] for match in map(TAG.fullmatch, added) if match is not None}
    return named - {text for tag in tags if f"</{tag}>" in added for text in (f"<{tag}>", f"</{tag}>")}


def _pattern(special: Mapping[int, AddedToken]) -> str:
    """Return a regular expression for the texts of special tokens; some are none within a word."""
    texts = [token.content for token in special.values() if not token.single_word]
    words = sorted((token.content for token in special.values() if token.single_word), key=len, reverse=True)
    return "|".join([pattern_of(texts), *(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words)])


def _is_kept(backend: tokenizers.Tokenizer, *texts: str) -> bool:
    """Whether normalization leaves texts as they are."""
    normalizer = backend.normalizer
    return normalizer is None or all(normalizer.normalize_str(text) == text for text in texts)


def _respelled(token: AddedToken, spelling: str, is_kept: Mapping[str, bool]) -> AddedToken:
    """Return a token with another text, which is found in normalized text if the token is and the text is kept."""
    return AddedToken(
        spelling,
        single_word=False,  # where it stands has been checked
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and is_kept[token.content],
        special=True,
    )


def _encoder_like(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer without added tokens that shares a tokenizer's model."""
    encoder = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        encoder.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        encoder.pre_tokenizer = backend.pre_tokenizer
    return encoder


def _letters(backend: tokenizers.Tokenizer, special: Mapping[int, AddedToken]) -> dict[int, list[int]]:
    """Return the ids by which to spell special tokens that the model's own vocabulary holds.

    The model may make them of plain text. The token for what is unknown stays: it stands for any text.
    """
    model = backend.model
    own = {number: token.content for number, token in special.items() if model.token_to_id(token.content) == number}
    if not own:
        return {}
    unknown = _model_ids(model, UNKNOWN)
    letters = {number: [each for letter in text for each in _model_ids(model, letter)] for number, text in own.items()}
    return {number: ids for number, ids in letters.items() if number not in unknown}


def _model_ids(model: tokenizers.models.Model, text: str) -> list[int]:
    try:
        return [token.id for token in model.tokenize(text)]
    except Exception:  # noqa: BLE001 - the library's, of a model without a token for what is unknown
        return []
