"""Reads a checkpoint's tokenizer from its files.

These are `tokenizer.json` (the format of the `tokenizers` library), a GGUF file (`gguf_tokenizer`), SentencePiece's BPE
(`sentencepiece_files`), `tekken.json` (`tekken`), or another format, which is converted (`conversion`),
and, if they exist, `tokenizer_config.json`,
`special_tokens_map.json`, `generation_config.json` and the chat template (`template_files`). No other code of a
checkpoint runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers.processors import TemplateProcessing

from sluice.text.chat_template import NAMED_TOKENS, ChatTemplate, ChatTemplateError
from sluice.text.conversion import ConversionError, convert, other_format
from sluice.text.expansion import check_expansion
from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.tokenizer import GGUFTokenizer, gguf_tokenizer, has_gguf_tokenizer
from sluice.text.sentencepiece_files import sentencepiece_tokenizer
from sluice.text.special_tokens import SpecialTokens
from sluice.text.tekken import NAME as TEKKEN
from sluice.text.tekken import tekken_tokenizer
from sluice.text.template_files import template_source
from sluice.text.tokenizer import Tokenizer, TokenizerError

SUFFIX = ".gguf"
GGUF = f"model{SUFFIX}"
"""File in the folder that is made of a GGUF file."""
BESIDE_GGUF = ("tokenizer.json", "tokenizer.model")
"""Files that are used in place of a GGUF file's own tokenizer."""


def load_tokenizer(
    place: Path,
    *,
    chat: bool = True,
    allow_special_tokens: bool = False,
    chat_template: str | None = None,
) -> Tokenizer:
    """Load the tokenizer of a checkpoint.

    Args:
        place: the checkpoint's folder, or a GGUF file.
        chat: start the checkpoint's chat template too, if it has one.
        allow_special_tokens: text in messages that looks like a special token becomes one.
        chat_template: the source of a chat template in place of the checkpoint's.

    Raises:
        TokenizerError: `tokenizer.json` is missing and no other format can be converted, or a file cannot be read; the
            message names it.
    """
    return TokenizerFiles.read(place).tokenizer(
        chat=chat, allow_special_tokens=allow_special_tokens, chat_template=chat_template
    )


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of a checkpoint say of its tokenizer, read once: to convert one takes seconds."""

    folder: Path
    backend: tokenizers.Tokenizer
    settings: Mapping[str, Any]
    special: Mapping[str, str]
    """Role -> special token."""
    ends: frozenset[int] = frozenset()
    """Ids that end an answer, beside those of `generation_config.json`."""

    @classmethod
    def read(cls, place: Path) -> TokenizerFiles:
        """Read a checkpoint's tokenizer. Raises `TokenizerError` as `load_tokenizer` does."""
        folder, file = _folder_and_file(place)
        if file is None or any((folder / name).is_file() for name in BESIDE_GGUF):
            (backend, roles), ends = _read_backend(folder), frozenset[int]()
        else:
            found = _gguf_tokenizer(file)
            backend, roles, ends = found.backend, dict(found.special_tokens), found.eos_token_ids
            roles |= {} if found.chat_template is None else {"chat_template": found.chat_template}
        try:
            check_expansion(backend)
        except ValueError as error:
            raise TokenizerError(f"{place}: {error}") from error
        # The map is an older format, and gives only what the config does not.
        settings = roles | _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        special = _special_tokens(settings)
        _add_missing_tokens(backend, settings, special, folder)
        _apply_bos_eos(backend, settings, special)
        return cls(folder, backend, settings, special, ends)

    def tokenizer(
        self, *, chat: bool = True, allow_special_tokens: bool = False, chat_template: str | None = None
    ) -> Tokenizer:
        """Return the tokenizer, with the arguments of `load_tokenizer`."""
        source = (chat_template or template_source(self.folder, self.settings.get("chat_template"))) if chat else None
        special_tokens = None if source is None or allow_special_tokens else SpecialTokens(self.backend, source)
        spellings = None if special_tokens is None else special_tokens.spellings
        template = None if source is None else ChatTemplate(source, self.special, spellings=spellings)
        try:
            if template is not None:
                template.start()
        except ChatTemplateError as error:
            raise TokenizerError(f"{self.folder}: {error}") from error
        eos_token_ids = self.ends | _eos_ids(self.folder, self.backend, self.special)
        return Tokenizer(
            self.backend, eos_token_ids=eos_token_ids, chat_template=template, special_tokens=special_tokens
        )


def has_tokenizer(folder: Path) -> bool:
    """Return whether a checkpoint has a tokenizer, of any format."""
    if (folder / "tokenizer.json").is_file() or other_format(folder) is not None:
        return True
    return (folder / GGUF).is_file() and has_gguf_tokenizer(folder / GGUF)


def _folder_and_file(place: Path) -> tuple[Path, Path | None]:
    """Return the folder of a tokenizer's files, and the GGUF file in it, by the name that the user knows."""
    if place.suffix == SUFFIX and place.is_file():
        return place.parent, place
    file = place / GGUF
    if not file.is_file():
        return place, None
    return place, file.readlink() if file.is_symlink() else file


def _gguf_tokenizer(file: Path) -> GGUFTokenizer:
    try:
        return gguf_tokenizer(file)
    except GGUFError as error:
        raise TokenizerError(str(error)) from error


def _read_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Return a checkpoint's tokenizer, and the roles of special tokens that only its own file gives."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _converted_backend(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path)), {}
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _converted_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    other = other_format(folder)
    if other is None:
        raise TokenizerError(f"{folder} has no tokenizer.json, and no tokenizer of another format")
    try:
        converted = (
            tekken_tokenizer(other) if other.name == TEKKEN else sentencepiece_tokenizer(other) or convert(other)
        )
    except ConversionError as error:
        raise TokenizerError(f"{folder} has no tokenizer.json, and {error}") from error
    return converted.backend, converted.special_tokens


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode()  # a lone half of a character has no bytes
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens with a role, by its name. Each is given as a text or as an object with "content"."""
    values = {name: settings.get(name) for name in NAMED_TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


class _Content(msgspec.Struct):
    """A token as an object."""

    content: str


class _Added(_Content):
    """An entry of `added_tokens_decoder`."""

    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


def _setting(settings: Mapping[str, Any], name: str, kind: Any, folder: Path) -> Any:
    """Return a setting of this type, or None.

    Raises:
        TokenizerError: it is of another type.
    """
    try:
        return msgspec.convert(settings.get(name), kind | None, str_keys=True)
    except msgspec.ValidationError as error:
        raise TokenizerError(f"{folder}: tokenizer_config.json: {name}: {error}") from error


def _extra_special_tokens(settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the special tokens without a role: given as a list, or (transformers 5) by name.

    Raises:
        TokenizerError: they are no texts.
    """
    found: list[str] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = _setting(settings, name, list[str | _Content] | dict[str, str | _Content], folder) or []
        found += [
            each if isinstance(each, str) else each.content
            for each in (tokens.values() if isinstance(tokens, dict) else tokens)
        ]
    return found


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str], folder: Path
) -> None:
    """Add the tokens that only `tokenizer_config.json` has, with its ids, and make named tokens special.

    Raises:
        TokenizerError: a value is of the wrong type, or an id is taken.
    """
    declared = _setting(settings, "added_tokens_decoder", dict[int, _Added], folder) or {}
    for token_id, entry in sorted(declared.items(), key=lambda each: each[0]):
        known = backend.get_added_tokens_decoder().get(token_id)
        token = tokenizers.AddedToken(
            entry.content,
            single_word=entry.single_word,
            lstrip=entry.lstrip,
            rstrip=entry.rstrip,
            normalized=entry.normalized,
            special=entry.special,
        )
        if known is None or (token.special and not known.special):
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        if backend.token_to_id(token.content) != token_id:
            raise TokenizerError(
                f"{folder}: tokenizer_config.json gives {token.content!r} the id {token_id}, the tokenizer gives it"
                f" {backend.token_to_id(token.content)}"
            )
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = {*special.values(), *_extra_special_tokens(settings, folder)} - marked
    backend.add_special_tokens(sorted(text for text in named if backend.token_to_id(text) is not None))


def _apply_bos_eos(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Let `add_bos_token` and `add_eos_token` replace the post-processor of `tokenizer.json`, if one of them is true.

    If they are false the file decides, as in transformers 5: Qwen3-Embedding's appends a token, and its
    `add_bos_token` is false.
    """
    if not (settings.get("add_bos_token") or settings.get("add_eos_token")):
        return
    bos = special.get("bos_token") if settings.get("add_bos_token") else None
    eos = special.get("eos_token") if settings.get("add_eos_token") else None
    present = [(text, backend.token_to_id(text)) for text in (bos, eos) if text is not None]
    backend.post_processor = TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
        special_tokens=[(text, token_id) for text, token_id in present if token_id is not None],
    )


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """Return the tokenizer's end-of-sequence id and those of `generation_config.json`."""
    declared = _read_json(folder / "generation_config.json").get("eos_token_id")
    given = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(type(each) is int for each in given):
        raise TokenizerError(f"{folder}: generation_config.json: eos_token_id must be a token id or a list of them")
    ids = set(given)
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if own is not None:
        ids.add(own)
    return frozenset(ids)
