"""Ids of a stream's events, by which its client may ask for the rest at any server of the same model.

A token depends only on the model, the tokens before it, the seed and its position. So the body of the call and the id
of the last event are enough: the stream is made again, what the client has is left out, and nothing is kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from sluice.http.base.errors import ApiError, bad_request
from sluice.http.base.framing import Framing
from sluice.text.text_stream import Piece
from sluice.types.shown import shown

HEADER = "last-event-id"
FORM = re.compile(r"([0-9a-f]{24})\.(\d{1,12})\.(-?\d{1,20})\.([0-9a-f]{8})\.(\d{1,12})")


class EventId(NamedTuple):
    """The id of an event. Clients send back that of the last one they have."""

    call: str
    """`Generation.id`."""
    created: int
    """When the call came, in Unix seconds."""
    seed: int
    digest: int
    """CRC-32 of the tokens up to the event, 4 bytes each."""
    number: int
    """Of the event, from 1."""

    def __str__(self) -> str:
        return f"{self.call}.{self.created}.{self.seed}.{self.digest:08x}.{self.number}"

    @classmethod
    def of(cls, text: str) -> EventId:
        """Return the id that a header holds.

        Raises:
            ApiError: 400, it is none.
        """
        found = FORM.fullmatch(text)
        if found is None:
            raise bad_request(f"Last-Event-ID must be the id of an event of a stream, got {shown(text)}", param=HEADER)
        call, created, seed, digest, number = found.groups()
        return cls(call, int(created), int(seed), int(digest, 16), int(number))


class EventIds:
    """Numbers the events of a stream of one choice, and leaves out those that its client has.

    Args:
        first: the id of the call before its first event.
        last: of the last event that the client has; None: it has none.
    """

    def __init__(self, first: EventId, last: EventId | None) -> None:
        self._at = first
        self._last = last

    def frames(self, framing: Framing, contents: Iterable[msgspec.Struct]) -> Iterator[bytes]:
        """Yield the frames of events.

        Raises:
            ApiError: as `_event`.
        """
        for content in contents:
            yield from self._event(framing, content)

    def took(self, pieces: Sequence[Piece]) -> None:
        """Count the tokens of the events that follow."""
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        data = b"".join(token.to_bytes(4, "little") for token in ids)
        self._at = self._at._replace(digest=zlib.crc32(data, self._at.digest))

    def ended(self) -> None:
        """Check that the client has no more events than there are.

        Raises:
            ApiError: 409, it has.
        """
        if self._last is not None and self._last.number > self._at.number:
            raise self._differs()

    def _event(self, framing: Framing, content: msgspec.Struct) -> Iterator[bytes]:
        """Yield the fragments of an event with its id, or nothing if the client has it.

        Raises:
            ApiError: 409, the tokens before it are others now.
        """
        self._at = self._at._replace(number=self._at.number + 1)
        last = self._last
        if last is not None and self._at.number <= last.number:
            if self._at.number == last.number and self._at.digest != last.digest:
                raise self._differs()
            return
        yield f"id: {self._at}\n".encode()
        yield from framing.frames([content])

    def _differs(self) -> ApiError:
        return ApiError(
            409,
            "the stream cannot be continued: its body, its model or the order of its sums is another one now, and"
            " tokens that were sent would be different; send the call without Last-Event-ID",
            param=HEADER,
            code="stream_changed",
        )
