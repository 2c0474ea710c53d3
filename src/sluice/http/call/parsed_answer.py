"""The answer to a call of one choice, as the blocks that its text holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sluice.http.call.blocks import Blocks, Change
from sluice.http.call.replies import ReplyReader
from sluice.text.parsers.events import Event
from sluice.text.parsers.parsing import AnswerParser
from sluice.text.text_stream import Piece
from sluice.types import FinishReason


class ParsedAnswer:
    """Turns the pieces of an answer's text into changes of its blocks.

    Args:
        parser: tells text, reasoning and calls apart.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self.blocks = Blocks()
        self.finish_reason: FinishReason | None = None
        self._reader = ReplyReader(parser)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens up to the first text or call, if there is reasoning before it."""
        return self._reader.reasoning_tokens

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
