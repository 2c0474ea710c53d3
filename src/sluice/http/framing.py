"""How the events of a stream are told apart: as server-sent events, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sluice.http.errors import ApiError
from sluice.http.routes import EVENT_STREAM, NDJSON
from sluice.http.turns import at_once, fragments


@dataclass(frozen=True, slots=True)
class Framing:
    """What stands around each event of a stream, and how it ends."""

    media_type: str
    before: bytes
    after: bytes
    done: bytes
    """What follows the last event."""
    failure: Callable[[ApiError], dict[str, Any]]
    """Returns the last event of a stream that failed."""

    def frames(self, contents: Iterable[dict[str, Any] | None]) -> Iterator[bytes]:
        """Yield events, long ones in fragments. None is no event."""
        for content in contents:
            if content is None:
                continue
            whole = at_once(content)
            if whole is not None:
                yield self.before + whole + self.after
            else:
                yield self.before
                yield from fragments(content)
                yield self.after


SERVER_SENT = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"data: [DONE]\n\n", ApiError.body)
LINES = Framing(NDJSON, b"", b"\n", b"", ApiError.ollama_body)
