"""How the events of a stream are told apart: as server-sent events, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

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
    failure: Callable[[ApiError], Iterable[msgspec.Struct]]
    """Returns the last events of a stream that failed."""
    comment: bytes = COMMENT
    """What says that the answer continues, and is no event; empty: such answers have an event for it."""
    names_events: bool = False
    """The tag of an event stands before its data, too."""

    def heartbeat(self, contents: Iterable[msgspec.Struct]) -> Heartbeat:
        """Return what says that the answer continues: events, or a comment if there are none."""
        return Heartbeat(b"".join(self.frames(contents)) or self.comment)

    def frames(self, contents: Iterable[msgspec.Struct]) -> Iterator[bytes]:
        """Yield events, long ones in fragments."""
        for content in contents:
            whole = at_once(content)
            before = self._name(content) + self.before if self.names_events else self.before
            if whole is not None:
                yield before + whole + self.after
            else:
                yield before
                yield from fragments(content)
                yield self.after

    def _name(self, content: msgspec.Struct) -> bytes:
        return f"event: {content.__struct_config__.tag}\n".encode()


SERVER_SENT = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"data: [DONE]\n\n", lambda error: [error.body()])
LINES = Framing(NDJSON, b"", b"\n", b"", lambda error: [error.ollama_body()], comment=b"")
