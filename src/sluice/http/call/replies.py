"""Answers of chats in OpenAI's form: deltas and messages, made of the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.text.parsers.events import ArgumentsDelta, CallBegun, Event, ReasoningDelta, Reply, TextDelta, whole_of
from sluice.text.parsers.parsing import AnswerParser, TextOnly
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

TOOL_CALLS = "tool_calls"
"""Why an answer ended that calls tools."""


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

    def finish_reason(self, reason: FinishReason | None) -> str | None:
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


def delta_of(events: Sequence[Event]) -> dict[str, Any]:
    """Return what events bring as a delta; an empty one if they bring nothing."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case TextDelta(text):
                delta["content"] = delta.get("content", "") + text
            case ReasoningDelta(text):
                delta |= _reasoning(delta.get("reasoning", "") + text)
            case CallBegun(index, id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": id, "type": "function", "function": function}
            case ArgumentsDelta(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    return delta | ({"tool_calls": [*calls.values()]} if calls else {})


def message_of(reply: Reply) -> dict[str, Any]:
    """Return a whole answer as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.calls else "")}
    if reply.reasoning:
        message |= _reasoning(reply.reasoning)
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under both of its names: DeepSeek's, and vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}
