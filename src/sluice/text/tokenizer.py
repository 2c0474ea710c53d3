"""Encodes text to token ids and decodes ids to text with a checkpoint's tokenizer (`tokenizer_files` reads it)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile

import tokenizers

from sluice.text.chat_template import (
    DEFAULT,
    ChatTemplate,
    ChatTemplateError,
    ChatTemplateRefusal,
    ChatTemplateUnavailable,
    Message,
    RenderOptions,
)
from sluice.text.detokenizer import Detokenizer, Vocabulary, decode, spelling_of
from sluice.text.special_tokens import SpecialTokens


class TokenizerError(ValueError):
    """The checkpoint's tokenizer cannot be used, or cannot serve a request."""


class TemplateRefusal(TokenizerError):
    """The chat template refuses the messages."""


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

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the tokenizer; a model's vocabulary may be padded beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

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
    except ChatTemplateRefusal as error:
        raise TemplateRefusal(str(error)) from error
    except ChatTemplateError as error:
        raise TokenizerError(str(error)) from error
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error


def _not_unicode(error: UnicodeEncodeError) -> TokenizerError:
    surrogate = error.object[error.start]
    return TokenizerError(f"the text must be valid Unicode, got the unpaired surrogate {surrogate!r} at {error.start}")


def _vocabulary(backend: tokenizers.Tokenizer) -> Vocabulary:
    state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    try:
        return Vocabulary(spelling_of(state), backend.id_to_token, special)
    except ValueError as error:
        raise TokenizerError(str(error)) from error
