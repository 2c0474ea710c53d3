"""Answers in Anthropic's form: a message, or a stream of the events that make it up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from sluice.http.apis.anthropic.fields import MessagesFields
from sluice.http.base.framing import Framing
from sluice.http.base.progress import Progress
from sluice.http.base.routes import EVENT_STREAM
from sluice.http.call.blocks import Block, BlockReader, Change, Kind, Step
from sluice.http.call.generate_call import GenerateCall
from sluice.http.call.generation import Generation, Usage
from sluice.text.parsers.argument_types import object_of
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

FRAMING = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"", lambda error: [error.anthropic_body()], names_events=True)


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageUsage(msgspec.Struct):
    input_tokens: int
    """Tokens of the prompt that were not cached."""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str
    """Empty: reasoning that comes back is taken as it is."""


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class MessageAnswer(msgspec.Struct, kw_only=True):
    """The answer to `POST /v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageAnswer


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Content


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Stopped(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: Stopped
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


MessageEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
"""An event of its stream."""


class AnthropicAnswer:
    """The answer to `POST /v1/messages`."""

    framing = FRAMING

    def __init__(self, call: GenerateCall[MessagesFields], generation: Generation) -> None:
        self._call = call
        self._generation = generation
        self._reader = BlockReader(generation.parser())

    def opening(self, index: int) -> Iterator[MessageEvent]:
        yield MessageStart(self._message([], None, self._generation.usage()))
        yield Ping()

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[MessageEvent]:
        for _, piece in arrived:
            yield from map(_event, self._reader.push(piece))

    def waiting(self, progress: Progress | None) -> Iterator[MessageEvent]:
        yield Ping()

    def closing(self, usage: Usage) -> Iterator[MessageEvent]:
        yield MessageDelta(Stopped(*self._end()), usage_of(usage))
        yield MessageStop()

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> MessageAnswer:
        for _ in self._reader.push_all(choices[0]):
            pass
        content = [content_of(block) for block in self._reader.blocks.all]
        return self._message(content, self._end(), usage)

    def _message(
        self, content: list[Content], end: tuple[StopReason, str | None] | None, usage: Usage
    ) -> MessageAnswer:
        reason, stop = end or (None, None)
        return MessageAnswer(
            id=f"msg_{self._generation.id}",
            type="message",
            role="assistant",
            model=self._generation.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=usage_of(usage),
        )

    def _end(self) -> tuple[StopReason, str | None]:
        """Return why the answer ended, and the stop string that ended it."""
        (choice,) = self._generation.choices
        asked, given = self._call.sampling.max_tokens, choice.request.sampling.max_tokens
        if self._reader.finish_reason is FinishReason.LENGTH:
            return ("max_tokens" if given == asked else "model_context_window_exceeded"), None
        if choice.text.stop_string is not None:
            return "stop_sequence", choice.text.stop_string
        # A call that went wrong is not to be made.
        calls = [block for block in self._reader.blocks.all if block.kind is Kind.CALL]
        return ("tool_use" if calls and all(call.is_complete for call in calls) else "end_turn"), None


def usage_of(usage: Usage) -> MessageUsage:
    """Return the tokens of a call as Anthropic counts them: those of the prompt without the cached ones."""
    cached = usage.cached.total
    return MessageUsage(usage.prompt_tokens - cached, 0, cached, usage.completion_tokens)


def _event(change: Change) -> MessageEvent:
    block = change.block
    match change.step:
        case Step.BEGAN:
            return BlockStart(block.index, content_of(block))
        case Step.GREW:
            return BlockDelta(block.index, _delta(block.kind, change.text))
    return BlockStop(block.index)


def _delta(kind: Kind, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    match kind:
        case Kind.TEXT:
            return TextDelta(text)
        case Kind.REASONING:
            return ThinkingDelta(text)
    return InputDelta(text)


def content_of(block: Block) -> Content:
    """Return a block as far as it has come. The input of a call is empty until it is complete, and if it was cut off or
    went wrong: its JSON is no object."""
    match block.kind:
        case Kind.TEXT:
            return TextContent(block.text)
        case Kind.REASONING:
            return ThinkingContent(block.text, "")
    found = object_of(block.text) if block.is_complete else None
    return ToolUseContent(block.call_id, block.name, found or {})
