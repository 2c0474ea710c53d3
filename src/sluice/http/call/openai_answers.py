"""The answers to completions and chats in OpenAI's form: one object, or an event for each token."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.base.framing import SERVER_SENT
from sluice.http.base.progress import Progress
from sluice.http.base.turns import json_list
from sluice.http.call import generation as counts
from sluice.http.call.answers import end_of, text_of
from sluice.http.call.generate_call import GenerateCall, documented
from sluice.http.call.generation import Choice, Generation
from sluice.http.call.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    ScoredToken,
    chat_logprobs,
    completion_logprobs,
    offsets_of,
    prompt_logprobs,
    prompt_offsets,
    scored_pieces,
)
from sluice.http.call.openai import ChatFields, CompletionFields
from sluice.http.call.replies import NO_DELTA, AssistantMessage, Delta, ReplyReader, delta_of, message_of
from sluice.http.call.usage import Usage, usage_json
from sluice.text.parsers.events import Reply
from sluice.text.text_stream import Piece

EndReason = Annotated[str, documented(enum=["stop", "length"])]
ChatEndReason = Annotated[str, documented(enum=["stop", "length", "tool_calls"])]
SomeIds = list[int] | UnsetType
"""Token ids, given only with `return_token_ids`."""


class _Head(msgspec.Struct, kw_only=True):
    id: str
    object: str
    created: int
    """Unix seconds."""
    model: str
    store: Literal[False] | UnsetType = UNSET
    """Given only if the request says `store: true`."""


class _CompletionText(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: EndReason | None
    prompt_token_ids: SomeIds = UNSET
    token_ids: SomeIds = UNSET


class CompletionChoice(_CompletionText, kw_only=True):
    finish_reason: EndReason
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(_Head, kw_only=True):
    """The answer to `POST /v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(_CompletionText, kw_only=True, gc=False):
    pass


class CompletionChunk(_Head, kw_only=True, gc=False):
    """An event of its stream. Those with the usage of the call, or with its progress, have no choices."""

    object: Literal["text_completion"]
    usage: Usage | UnsetType | None = UNSET
    choices: list[CompletionChunkChoice]
    progress: Progress | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatEndReason
    token_ids: SomeIds = UNSET


class ChatCompletion(_Head, kw_only=True):
    """The answer to `POST /v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    usage: Usage
    prompt_token_ids: SomeIds = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatEndReason | None
    token_ids: SomeIds = UNSET


class ChatCompletionChunk(_Head, kw_only=True, gc=False):
    """An event of its stream. Those with the usage of the call, or with its progress, have no choices."""

    object: Literal["chat.completion.chunk"]
    usage: Usage | UnsetType | None = UNSET
    choices: list[ChatChunkChoice]
    progress: Progress | UnsetType = UNSET
    prompt_token_ids: SomeIds = UNSET


class _OpenAIAnswer(ABC):
    """What the answers of completions and chats have in common: one event for each token.

    Args:
        prefix: of the id.
        kind: the `object` of a whole answer.
        event_kind: the `object` of an event.
    """

    framing = SERVER_SENT
    event_type: type[CompletionChunk] | type[ChatCompletionChunk]

    def __init__(
        self, call: GenerateCall[Any], generation: Generation, *, prefix: str, kind: str, event_kind: str
    ) -> None:
        service = generation.service

        def head(kind: str) -> dict[str, Any]:
            id = f"{prefix}-{generation.id}"
            head = {"id": id, "object": kind, "created": generation.created, "model": generation.model}
            return head | {"store": False} if call.fields.store else head

        self._head, self._last_head = head(kind), head(event_kind)
        # As in OpenAI's streams, `usage` is null in all events but the last if that one brings the counts.
        self._event_head = self._last_head | ({"usage": None} if call.include_usage else {})
        self._include_usage = call.include_usage
        self._returns_ids = bool(call.fields.return_token_ids)
        self._has_continuous_usage = call.continuous_usage
        self._counts = [0] * len(generation.choices)
        self._generation = generation
        self._tokenizer = service.tokenizer

    def _event(self, choice: Any) -> Any:
        return self.event_type(choices=[choice], **self._event_head)

    @abstractmethod
    def chunk(self, index: int, piece: Piece) -> Any:
        """Return the event of one token of a choice."""

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[Any]:
        for index, piece in arrived:
            chunk = self.chunk(index, piece)
            if self._has_continuous_usage:
                chunk.usage = self._usage(index, piece)
            yield chunk

    def _ids(self, pieces: Sequence[Piece]) -> SomeIds:
        """Return the ids of some pieces, if the call asks for them."""
        if not self._returns_ids:
            return UNSET
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        return json_list(ids, len(ids))

    def _prompt_ids(self, index: int) -> SomeIds:
        """Return the ids of a choice's prompt, if the call asks for them."""
        if not self._returns_ids:
            return UNSET
        prompt = self._generation.choices[index].prompt
        return json_list(prompt, len(prompt))

    def _usage(self, index: int, piece: Piece) -> Usage:
        """Return the usage of a choice so far."""
        self._counts[index] += piece.token_id is not None
        choice = self._generation.choices[index]
        return usage_json(counts.Usage(len(choice.prompt), choice.cached, self._counts[index]))

    def waiting(self, progress: Progress | None) -> Iterator[msgspec.Struct]:
        if progress is not None:
            yield self.event_type(choices=[], progress=progress, **self._event_head)

    def closing(self, usage: counts.Usage) -> Iterator[msgspec.Struct]:
        if self._include_usage:
            yield self.event_type(choices=[], usage=usage_json(usage), **self._last_head)


class CompletionAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/completions`."""

    event_type = CompletionChunk

    def __init__(self, call: GenerateCall[CompletionFields], generation: Generation) -> None:
        super().__init__(call, generation, prefix="cmpl", kind="text_completion", event_kind="text_completion")
        self._has_prompt_logprobs = call.fields.prompt_logprobs is not None
        self._echo: list[str] = []
        """The prompt of each choice as the client wrote it, or what its token ids spell."""
        self._skips_special: list[bool] = []
        """Whether a choice's prompt is repeated without special tokens; those in a text of the client's stay."""
        self._num_added: list[int] = []
        """Special tokens that the tokenizer put before the prompt of each choice."""
        if call.fields.echo:
            samples = call.sampling.n
            for prompt, choice in zip(call.prompts, generation.choices[::samples], strict=True):
                text = prompt if isinstance(prompt, str) else self._spelled(call, choice)
                self._echo += [text] * samples
                skips_special = call.text.skip_special_tokens and not isinstance(prompt, str)
                self._skips_special += [skips_special] * samples
                is_marked = isinstance(prompt, str) and call.add_special_tokens
                self._num_added += [self._tokenizer.num_special_before if is_marked else 0] * samples

    def _spelled(self, call: GenerateCall[CompletionFields], choice: Choice) -> str:
        return self._tokenizer.decode(choice.prompt, skip_special_tokens=call.text.skip_special_tokens)

    def opening(self, index: int) -> Iterator[CompletionChunk]:
        if self._echo or self._returns_ids:
            echo, ids = self._echo[index] if self._echo else "", self._prompt_ids(index)
            yield self._event(
                CompletionChunkChoice(index=index, text=echo, logprobs=None, finish_reason=None, prompt_token_ids=ids)
            )

    def chunk(self, index: int, piece: Piece) -> Any:
        offset = len(self._echo[index]) if self._echo else 0
        logprobs = completion_logprobs(self._tokenizer, scored_pieces([piece]), offsets_of([piece], offset))
        choice = CompletionChunkChoice(
            index=index, text=piece.text, logprobs=logprobs, finish_reason=piece.finish_reason
        )
        if self._returns_ids:
            choice.token_ids = self._ids([piece])
        return self._event(choice)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: counts.Usage) -> Completion:
        answers = (self._choice(index, pieces) for index, pieces in enumerate(choices))
        return Completion(choices=json_list(answers, len(choices)), usage=usage_json(usage), **self._head)

    def _choice(self, index: int, pieces: Sequence[Piece]) -> CompletionChoice:
        echo = self._echo[index] if self._echo else ""
        in_prompt = self._generation.prompt_logprobs(index)
        scored, offsets = scored_pieces(pieces), offsets_of(pieces, len(echo))
        if echo and in_prompt is not None:
            prompt = self._generation.choices[index].prompt
            scored = [*map(ScoredToken, prompt, in_prompt), *scored]
            added, skips_special = self._num_added[index], self._skips_special[index]
            own = prompt_offsets(self._tokenizer, prompt, added, skip_special_tokens=skips_special)
            offsets = itertools.chain(own, offsets)
        shown = in_prompt if self._has_prompt_logprobs else None
        return CompletionChoice(
            index=index,
            text=echo + text_of(pieces),
            logprobs=completion_logprobs(self._tokenizer, scored, offsets),
            finish_reason=end_of(pieces),
            prompt_logprobs=UNSET if shown is None else prompt_logprobs(self._tokenizer, shown),
            prompt_token_ids=self._prompt_ids(index),
            token_ids=self._ids(pieces),
        )


class ChatAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/chat/completions`."""

    event_type = ChatCompletionChunk

    def __init__(self, call: GenerateCall[ChatFields], generation: Generation) -> None:
        kind = "chat.completion"
        super().__init__(call, generation, prefix="chatcmpl", kind=kind, event_kind=f"{kind}.chunk")
        self._readers = [ReplyReader(choice.parser) for choice in generation.choices]
        self._shows_tokens = self._returns_ids or self._has_continuous_usage or call.fields.logprobs

    def opening(self, index: int) -> Iterator[ChatCompletionChunk]:
        delta = Delta(role="assistant", content="")
        event = self._event(ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None))
        event.prompt_token_ids = self._prompt_ids(0) if index == 0 else UNSET
        yield event

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[ChatCompletionChunk]:
        chunks = zip(arrived, super().chunks(arrived), strict=True)
        # A token may be a part of a marker, which brings nothing by itself.
        return (chunk for (_, piece), chunk in chunks if self._brings(chunk.choices[0].delta, piece))

    def _brings(self, delta: Delta, piece: Piece) -> bool:
        return bool(delta.content or piece.finish_reason is not None or self._shows_tokens or delta != NO_DELTA)

    def chunk(self, index: int, piece: Piece) -> Any:
        logprobs = chat_logprobs(self._tokenizer, [piece])
        reader = self._readers[index]
        delta = Delta(content=piece.text) if reader.is_plain else delta_of(reader.push(piece))
        reason = reader.finish_reason(piece.finish_reason)
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        if self._returns_ids:
            choice.token_ids = self._ids([piece])
        return self._event(choice)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: counts.Usage) -> ChatCompletion:
        replies = [reader.read(pieces) for reader, pieces in zip(self._readers, choices, strict=True)]
        answers = (self._choice(index, pieces, replies[index]) for index, pieces in enumerate(choices))
        in_prompt = self._generation.prompt_logprobs(0)
        return ChatCompletion(
            choices=json_list(answers, len(choices)),
            prompt_logprobs=UNSET if in_prompt is None else prompt_logprobs(self._tokenizer, in_prompt),
            usage=usage_json(usage),
            prompt_token_ids=self._prompt_ids(0),
            **self._head,
        )

    def _choice(self, index: int, pieces: Sequence[Piece], reply: Reply) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=message_of(reply),
            logprobs=chat_logprobs(self._tokenizer, pieces),
            finish_reason=self._readers[index].finish_reason(end_of(pieces)),
            token_ids=self._ids(pieces),
        )
