"""Answers of chats in OpenAI's form: deltas and messages, made of the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sluice.text.parsers.events import ArgumentsDelta, CallBegun, Event, ReasoningDelta, Reply, TextDelta, whole_of
from sluice.text.parsers.parsing import AnswerParser, TextOnly
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

R = TypeVar("R", bound=FinishReason | None)
TOOL_CALLS = "tool_calls"
"""Why an answer ended that calls tools."""


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
        self._num_before = 0
        self._has_answered = False
        self.has_called = False
        """A tool was called."""
        self.reasoning_tokens = 0
        """Tokens up to the first text or call, if there is reasoning before it."""

    @property
    def is_plain(self) -> bool:
        """The answer is text as it stands."""
        return isinstance(self._parser, TextOnly)

    def push(self, piece: Piece) -> list[Event]:
        """Return what a piece brings. The last piece ends the answer."""
        events = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            events += self._parser.finish()
        self._count(events, piece.token_id is not None)
        return events

    def read(self, pieces: Sequence[Piece]) -> Reply:
        """Return the answer that all its pieces are."""
        return whole_of(self.events_of(pieces))

    def events_of(self, pieces: Sequence[Piece]) -> list[Event]:
        """Return what all pieces of the answer bring."""
        if self.is_plain:
            text = "".join(piece.text for piece in pieces)
            return [TextDelta(text)] if text else []
        events: list[Event] = []
        at = 0
        while at < len(pieces) and not self._has_answered:
            events += self.push(pieces[at])
            at += 1
        if at < len(pieces):  # no token of these has to be counted, so they can be read together
            rest = self._parser.push("".join(piece.text for piece in pieces[at:])) + self._parser.finish()
            self._count(rest, True)
            events += rest
        return events

    def finish_reason(self, reason: R) -> R | str:
        """Return why the answer ended, as OpenAI says it."""
        return TOOL_CALLS if reason is FinishReason.STOP and self.has_called else reason

    def _count(self, events: Sequence[Event], is_token: bool) -> None:
        self.has_called = self.has_called or any(isinstance(event, CallBegun) for event in events)
        if self._has_answered:
            return
        self._has_answered = any(not isinstance(event, ReasoningDelta) for event in events)
        self._num_before += is_token
        if self.reasoning_tokens or any(isinstance(event, ReasoningDelta) for event in events):
            self.reasoning_tokens = self._num_before - (is_token and self._has_answered)


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
