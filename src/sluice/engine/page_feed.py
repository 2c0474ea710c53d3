"""PageFeed: hands on what the prefix cache has stored and given up, once a turn of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.kv.events import EventLog, PageEvent


class PageListener(Protocol):
    """Takes the events of a prefix cache, in order."""

    def publish(self, events: Sequence[PageEvent]) -> None:
        """Take the events of one turn (never empty), and return at once: a step waits for it."""
        ...


class PageFeed:
    """Hands events on.

    Args:
        log: collects them.
        listener: receives them.
    """

    def __init__(self, log: EventLog, listener: PageListener) -> None:
        self._log = log
        self._listener = listener

    def flush(self) -> None:
        """Hand on what has happened since the last call."""
        events = self._log.take()
        if events:
            self._listener.publish(events)
