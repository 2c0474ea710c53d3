"""The engine's side of KV events: each turn's events go to the server as one message."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sluice.kv.events import PageEvent
from sluice.process.kv_events.wire import EventBatch, encode_batch
from sluice.process.wire import KvEvents


class KvEventSender:
    """A listener of a prefix cache (`engine.page_feed.PageListener`) that sends what it hears.

    Args:
        send: queues a message to the server, and returns at once.
        now: seconds since 1970.
    """

    def __init__(self, send: Callable[[KvEvents], None], now: Callable[[], float] = time.time) -> None:
        self._send = send
        self._now = now

    def publish(self, events: Sequence[PageEvent]) -> None:
        self._send(KvEvents(encode_batch(EventBatch(self._now(), tuple(events)))))
