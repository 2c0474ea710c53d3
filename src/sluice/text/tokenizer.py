"""Encodes text to token ids and decodes ids to text with a checkpoint's tokenizer.

Reads `tokenizer.json` (the format of the `tokenizers` library), or converts a tokenizer of another format
(`conversion`). Reads, if they exist, `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json` and
`chat_template.jinja`. No other code of a checkpoint runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from sluice.text.chat_template import (
    DEFAULT,
    NAMED_TOKENS,
    ChatTemplate,
    ChatTemplateError,
    ChatTemplateUnavailable,
    Message,
    RenderOptions,
)
from sluice.text.conversion import ConversionError, convert, other_format
from sluice.text.detokenizer import Detokenizer, Vocabulary, decode, spelling_of
from sluice.text.special_tokens import SpecialTokens


class TokenizerError(ValueError):
    """The checkpoint's tokenizer cannot be used, or cannot serve a request."""


class TokenizerUnavailable(TokenizerError):
    """A chat cannot be rendered at the moment; the same request may succeed later."""


class Tokenizer:
    """A checkpoint's tokenizer. It holds no state of any request, so several threads may use it.

    With a chat template that has been started, it holds a process, which `close` ends.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        chat_template: ChatTemplate | None = None,
        special_tokens: SpecialTokens | None = None,
    ) -> None:
        """
        Args:
            special_tokens: encodes what the template makes of messages that hold text of special tokens. None: such
                text becomes special tokens.

        Raises:
            TokenizerError: the backend's decoder is not supported.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat_template = chat_template
        self._special_tokens = special_tokens
        self._vocabulary = _vocabulary(backend)
        self._whole_vocabulary = self._vocabulary.with_special_tokens()
        self._showing: dict[frozenset[str], Vocabulary] = {}
        """Vocabularies by the special tokens that they show: one for each use of a parser, and these are few."""
        self.eos_token_ids = frozenset(eos_token_ids)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        chat: bool = True,
        allow_special_tokens: bool = False,
        chat_template: str | None = None,
    ) -> Tokenizer:
        """Load the tokenizer of a checkpoint.

        Args:
            chat: start the checkpoint's chat template too, if it has one.
            allow_special_tokens: text in messages that looks like a special token becomes one.
            chat_template: the source of a chat template in place of the checkpoint's.

        Raises:
            TokenizerError: `tokenizer.json` is missing and no other format can be converted, or a file cannot be
                read; the message names it.
        """
        return TokenizerFiles.read(folder).tokenizer(
            chat=chat, allow_special_tokens=allow_special_tokens, chat_template=chat_template
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the tokenizer; a model's vocabulary may be padded beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token in the vocabulary; at least as many as its text has."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def num_special_before(self) -> int:
        """Number of special tokens that `encode` puts before a text."""
        return sum(1 for _ in takewhile(self.is_special, self.encode("a")))

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {token.content: number for number, token in self._backend.get_added_tokens_decoder().items()}

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def chat_template_source(self) -> str | None:
        return None if self._chat_template is None else self._chat_template.source

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with bos and eos as the checkpoint configures them if `add_special_tokens`.

        A text of `render_chat` has its special tokens already; it says itself where they are.

        Raises:
            TokenizerError: the text has an unpaired surrogate, so it is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _not_unicode(error) from error
        if self._special_tokens is not None and self._special_tokens.are_spelled_in(text):
            return self._special_tokens.encode(text)
        # Only the batch call releases the GIL.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    async def render_chat(self, messages: Sequence[Message], options: RenderOptions = DEFAULT) -> str:
        """Return the text of a conversation, by default up to the beginning of the assistant's next message.

        It has its special tokens already: encode it with `add_special_tokens=False`.

        Raises:
            TokenizerError: the checkpoint has no chat template, or its template refuses the messages or was stopped.
            TokenizerUnavailable: there is no process to render.
        """
        with _rendering():
            return await asyncio.wrap_future(self._rendered(messages, options))

    def rendered_chat(self, messages: Sequence[Message], options: RenderOptions = DEFAULT) -> str:
        """Return what `render_chat` returns, and block until it is there.

        Raises:
            TokenizerError, TokenizerUnavailable: as `render_chat`.
        """
        with _rendering():
            return self._rendered(messages, options).result()

    def _rendered(self, messages: Sequence[Message], options: RenderOptions) -> Future[str]:
        if self._chat_template is None:
            raise TokenizerError(
                "the checkpoint has no chat template, so it cannot chat; use /v1/completions with a prompt"
            )
        return self._chat_template.submit(messages, options)

    def close(self) -> None:
        """End the process of the chat template, if there is one. Does not wait."""
        if self._chat_template is not None:
            self._chat_template.close()

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a list of ids. Without special tokens it equals the pieces of a `detokenizer`."""
        return decode(self._vocabulary if skip_special_tokens else self._whole_vocabulary, token_ids)

    def spelled(self, token_id: int) -> bytes | None:
        """Return the bytes of one token by itself, perhaps a part of a character; None if the id is unknown."""
        return self._vocabulary.spelled(token_id)

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is one that texts lack unless they show special tokens."""
        return self._whole_vocabulary.shows(token_id) and not self._vocabulary.shows(token_id)

    def serialized(self, extra: str) -> tuple[str, int]:
        """Return this tokenizer as the `tokenizers` library writes it, with one more special token, and the token's id,
        the last one. The tokenizer keeps that token, so it should serve no other purpose."""
        self._backend.add_special_tokens([extra])
        token_id = self._backend.token_to_id(extra)
        assert token_id is not None, f"{extra!r} was not added"
        return self._backend.to_str(), token_id

    def detokenizer(
        self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset()
    ) -> Detokenizer:
        """Return a detokenizer for text that continues `prompt`.

        Args:
            shown: texts of special tokens that are not skipped.
        """
        if not skip_special_tokens:
            return Detokenizer(self._whole_vocabulary, prompt)
        if shown and shown not in self._showing:
            self._showing[shown] = self._vocabulary.showing(shown)
        return Detokenizer(self._showing[shown] if shown else self._vocabulary, prompt)

    def token_id(self, text: str) -> int | None:
        """Return the id of an added token, special or not; None if a text is none."""
        return self._added_ids.get(text)


@contextmanager
def _rendering() -> Iterator[None]:
    """Turn the errors of a chat template into those of the tokenizer."""
    try:
        yield
    except ChatTemplateUnavailable as error:
        raise TokenizerUnavailable(str(error)) from error
    except ChatTemplateError as error:
        raise TokenizerError(str(error)) from error
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error


def _not_unicode(error: UnicodeEncodeError) -> TokenizerError:
    surrogate = error.object[error.start]
    return TokenizerError(f"the text must be valid Unicode, got the unpaired surrogate {surrogate!r} at {error.start}")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of a checkpoint say of its tokenizer, read once: to convert one takes seconds."""

    folder: Path
    backend: tokenizers.Tokenizer
    settings: Mapping[str, Any]
    special: Mapping[str, str]
    """Role -> special token."""

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        """Read a checkpoint's tokenizer. Raises `TokenizerError` as `Tokenizer.from_folder` does."""
        backend, roles = _read_backend(folder)
        # The map is an older format, and gives only what the config does not.
        settings = roles | _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        special = _special_tokens(settings)
        _add_missing_tokens(backend, settings, special, folder)
        _apply_bos_eos(backend, settings, special)
        return cls(folder, backend, settings, special)

    def tokenizer(
        self, *, chat: bool = True, allow_special_tokens: bool = False, chat_template: str | None = None
    ) -> Tokenizer:
        """Return the tokenizer, with the arguments of `Tokenizer.from_folder`."""
        source = (chat_template or _chat_template_source(self.folder, self.settings)) if chat else None
        special_tokens = None if source is None or allow_special_tokens else SpecialTokens(self.backend, source)
        spellings = None if special_tokens is None else special_tokens.spellings
        template = None if source is None else ChatTemplate(source, self.special, spellings=spellings)
        try:
            if template is not None:
                template.start()
        except ChatTemplateError as error:
            raise TokenizerError(f"{self.folder}: {error}") from error
        eos_token_ids = _eos_ids(self.folder, self.backend, self.special)
        return Tokenizer(
            self.backend, eos_token_ids=eos_token_ids, chat_template=template, special_tokens=special_tokens
        )


def _vocabulary(backend: tokenizers.Tokenizer) -> Vocabulary:
    state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    try:
        return Vocabulary(spelling_of(state), backend.id_to_token, special)
    except ValueError as error:
        raise TokenizerError(str(error)) from error


def has_tokenizer(folder: Path) -> bool:
    """Return whether a checkpoint has a tokenizer, of any format."""
    return (folder / "tokenizer.json").is_file() or other_format(folder) is not None


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
        converted = convert(other)
    except ConversionError as error:
        raise TokenizerError(f"{folder} has no tokenizer.json, and {error}") from error
    return converted.backend, converted.special_tokens


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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


def _extra_special_tokens(settings: Mapping[str, Any]) -> list[str]:
    """Return the special tokens without a role: given as a list, or (transformers 5) by name."""
    found: list[str] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = settings.get(name) or []
        for token in value.values() if isinstance(value, dict) else value:
            found.append(token["content"] if isinstance(token, dict) else token)
    return found


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str], folder: Path
) -> None:
    """Add the tokens that only `tokenizer_config.json` has, with its ids, and make named tokens special."""
    declared = settings.get("added_tokens_decoder") or {}
    for token_id, entry in sorted((int(key), value) for key, value in declared.items()):
        known = backend.get_added_tokens_decoder().get(token_id)
        token = tokenizers.AddedToken(
            entry["content"],
            single_word=entry.get("single_word", False),
            lstrip=entry.get("lstrip", False),
            rstrip=entry.get("rstrip", False),
            normalized=entry.get("normalized", True),
            special=entry.get("special", False),
        )
        if known is None or (token.special and not known.special):
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        if backend.token_to_id(token.content) != token_id:
            raise TokenizerError(
                f"{folder}: tokenizer_config.json gives {token.content!r} the id {token_id}, the tokenizer gives it"
                f" {backend.token_to_id(token.content)}"
            )
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = {*special.values(), *_extra_special_tokens(settings)} - marked
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


def _chat_template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):  # several named ones: [{"name": ..., "template": ...}]
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    return value if isinstance(value, str) else None


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """Return the tokenizer's end-of-sequence id and those of `generation_config.json`."""
    declared = _read_json(folder / "generation_config.json").get("eos_token_id")
    ids = set(declared if isinstance(declared, list) else [] if declared is None else [declared])
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if own is not None:
        ids.add(own)
    return frozenset(ids)
