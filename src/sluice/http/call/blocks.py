"""The blocks of an answer: its text, its reasoning and its calls of tools, one behind the other.

Responses and Anthropic's messages are lists of blocks. Streams say when one begins, grows and ends; whole answers list
them. Both are made from the same `Change`s, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sluice.http.call.replies import ReplyReader
from sluice.text.parsers.events import ArgumentsDelta, CallBegun, CallEnded, Event, ReasoningDelta, TextDelta
from sluice.text.parsers.parsing import AnswerParser
from sluice.text.text_stream import Piece
from sluice.types import FinishReason


class Kind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """A part of an answer, as far as it has come."""

    index: int
    """Index in the answer."""
    kind: Kind
    call_id: str = ""
    """Id of a call; empty in other blocks, as `name` is."""
    name: str = ""
    is_complete: bool = False
    """It did not end because the answer had to."""
    parts: list[str] = field(default_factory=list)
    """Pieces of the text, or of the JSON text of a call's arguments."""

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Step(Enum):
    BEGAN = "began"
    GREW = "grew"
    ENDED = "ended"


class Change(NamedTuple):
    """What an event does to a block."""

    step: Step
    block: Block
    text: str = ""
    """Text by which the block grew."""


class Blocks:
    """The blocks of one answer so far."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._is_open = False

    def push(self, events: Iterable[Event]) -> Iterator[Change]:
        """Add events, and yield what they change."""
        for event in events:
            match event:
                case TextDelta(text):
                    yield from self._grow(Kind.TEXT, text)
                case ReasoningDelta(text):
                    yield from self._grow(Kind.REASONING, text)
                case CallBegun(_, call_id, name):
                    yield from self._begin(Kind.CALL, call_id, name)
                case ArgumentsDelta(_, text):
                    yield self._grown(text)
                case CallEnded(_, is_complete):
                    yield from self.end(is_complete=is_complete)

    def add_empty_text(self) -> Iterator[Change]:
        """Add a text without a character."""
        yield from self._begin(Kind.TEXT)
        yield from self.end(is_complete=True)

    def end(self, *, is_complete: bool) -> Iterator[Change]:
        """End the last block, if it has not ended."""
        if self._is_open:
            self._is_open = False
            self.all[-1].is_complete = is_complete
            yield Change(Step.ENDED, self.all[-1])

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if not (self._is_open and self.all[-1].kind is kind):
            yield from self._begin(kind)
        yield self._grown(text)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[Change]:
        yield from self.end(is_complete=True)
        self.all.append(Block(len(self.all), kind, call_id, name))
        self._is_open = True
        yield Change(Step.BEGAN, self.all[-1])

    def _grown(self, text: str) -> Change:
        self.all[-1].parts.append(text)
        return Change(Step.GREW, self.all[-1], text)


class BlockReader:
    """Makes blocks of the pieces of one answer.

    Args:
        parser: tells text, reasoning and calls apart.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self.blocks = Blocks()
        self.finish_reason: FinishReason | None = None
        self._reader = ReplyReader(parser)

    @property
    def has_half_call(self) -> bool:
        """A call has arguments that are not whole."""
        return self._reader.has_half_call

    def push(self, piece: Piece) -> Iterator[Change]:
        """Add a piece, and yield what it changes. The last one ends the last block."""
        return self._changes(self._reader.push(piece), piece.finish_reason)

    def push_all(self, pieces: Sequence[Piece]) -> Iterator[Change]:
        """Add all pieces of the answer, and yield what they change together."""
        return self._changes(self._reader.events_of(pieces), pieces[-1].finish_reason)

    def _changes(self, events: Iterable[Event], reason: FinishReason | None) -> Iterator[Change]:
        yield from self.blocks.push(events)
        if reason is not None:
            self.finish_reason = reason
            yield from self.blocks.end(is_complete=reason is FinishReason.STOP)
