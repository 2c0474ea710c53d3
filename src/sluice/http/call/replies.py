"""Answers of chats in OpenAI's form: deltas and messages, made of the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sluice.text.parsers.events import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    Event,
    ReasoningDelta,
    Reply,
    TextDelta,
    whole_of,
)
from sluice.text.parsers.parsing import AnswerParser, TextOnly
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

R = TypeVar("R", bound=FinishReason | None)
TOOL_CALLS = "tool_calls"
"""Why an answer ended that calls tools, with arguments that are whole."""


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str
    """JSON text."""


class ToolCall(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    """Null if the message only calls tools."""
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str
    """More of the JSON text."""


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """A part of a call. The first has all fields."""

    index: int
    """Index of the call in the answer."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True, gc=False):
    role: Literal["assistant"] | UnsetType = UNSET
    """Given only in the first event of a choice."""
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


NO_DELTA = Delta()


class ReplyReader:
    """Makes events of the pieces of one answer."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._num_begun, self._num_whole = 0, 0

    @property
    def is_plain(self) -> bool:
        """The answer is text as it stands."""
        return isinstance(self._parser, TextOnly)

    @property
    def has_called(self) -> bool:
        """Tools were called, all of them with arguments that are whole."""
        return 0 < self._num_begun == self._num_whole

    @property
    def has_half_call(self) -> bool:
        """A call has arguments that are not whole."""
        return self._num_whole < self._num_begun

    def push(self, piece: Piece) -> list[Event]:
        """Return what a piece brings. The last piece ends the answer."""
        return self.events_of([piece])

    def read(self, pieces: Sequence[Piece]) -> Reply:
        """Return the answer that all its pieces are."""
        return whole_of(self.events_of(pieces))

    def events_of(self, pieces: Sequence[Piece]) -> list[Event]:
        """Return what pieces bring that follow one another."""
        events = self._parser.push("".join(piece.text for piece in pieces))
        reason = pieces[-1].finish_reason if pieces else None
        if reason is not None:
            events += self._parser.finish(is_cut=reason is not FinishReason.STOP)
        if not self.is_plain:
            self._num_begun += sum(isinstance(event, CallBegun) for event in events)
            self._num_whole += sum(isinstance(event, CallEnded) and event.is_complete for event in events)
        return events

    def finish_reason(self, reason: R) -> R | str:
        """Return why the answer ended, as OpenAI says it."""
        return TOOL_CALLS if reason is FinishReason.STOP and self.has_called else reason


def delta_of(events: Sequence[Event]) -> Delta:
    """Return what events bring as a delta; an empty one if they bring nothing."""
    delta = Delta()
    calls: dict[int, ToolCallDelta] = {}
    for event in events:
        match event:
            case TextDelta(text):
                delta.content = (delta.content or "") + text
            case ReasoningDelta(text):
                delta.reasoning = delta.reasoning_content = (delta.reasoning or "") + text
            case CallBegun(index, id, name):
                calls[index] = ToolCallDelta(
                    index=index, id=id, type="function", function=FunctionDelta(name=name, arguments="")
                )
            case ArgumentsDelta(index, text):
                call = calls.setdefault(index, ToolCallDelta(index=index, function=FunctionDelta(arguments="")))
                call.function.arguments += text
    delta.tool_calls = [*calls.values()] or UNSET
    return delta


def message_of(reply: Reply) -> AssistantMessage:
    """Return a whole answer as a message."""
    calls = [ToolCall(call.id, "function", CalledFunction(call.name, call.arguments)) for call in reply.calls]
    return AssistantMessage(
        role="assistant",
        content=reply.text or (None if calls else ""),
        reasoning_content=reply.reasoning or UNSET,
        reasoning=reply.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
