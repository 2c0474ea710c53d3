"""How the events of a stream are told apart: as server-sent events, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sluice.http.base.errors import ApiError
from sluice.http.base.routes import EVENT_STREAM, NDJSON
from sluice.http.base.turns import at_once, fragments


class Heartbeat(bytes):
    """Bytes of a stream that say only that more will come."""


COMMENT = b": waiting\n\n"
"""What readers of server-sent events leave out."""


@dataclass(frozen=True, slots=True)
class Framing:
    """What stands around each event of a stream, and how it ends."""

    media_type: str
    before: bytes
    after: bytes
    done: bytes
    """What follows the last event."""
    failure: Callable[[ApiError], Iterable[dict[str, Any]]]
    """Returns the last events of a stream that failed."""
    comment: bytes = COMMENT
    """What says that the answer goes on, and is no event; empty: such answers have an event for it."""
    names_events: bool = False
    """An event's `type` stands before its data, too."""

    def heartbeat(self, contents: Iterable[dict[str, Any]]) -> Heartbeat:
        """Return what says that the answer goes on: events, or a comment if there are none."""
        return Heartbeat(b"".join(self.frames(contents)) or self.comment)

    def frames(self, contents: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        """Yield events, long ones in fragments."""
        for content in contents:
            whole, before = at_once(content), self._before(content)
            if whole is not None:
                yield before + whole + self.after
            else:
                yield before
                yield from fragments(content)
                yield self.after

    def _before(self, content: dict[str, Any]) -> bytes:
        return f"event: {content['type']}\n".encode() + self.before if self.names_events else self.before


SERVER_SENT = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"data: [DONE]\n\n", lambda error: [error.body()])
LINES = Framing(NDJSON, b"", b"\n", b"", lambda error: [error.ollama_body()], comment=b"")
