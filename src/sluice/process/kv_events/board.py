"""KvEventBoard: where the server puts the KV events of its engines, one engine after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.config import EngineConfig, kv_event_settings
from sluice.kv.events import PageEvent, PagesCleared
from sluice.process.engine_state import KvEventCounts
from sluice.process.kv_events.publisher import KvEventPublisher, exposure_warning
from sluice.process.kv_events.wire import EventBatch, encode_batch
from sluice.process.wire import KvEvents

LOGGER = logging.getLogger("sluice.server")


class KvEventSink(Protocol):
    """Takes KV events in the process of the server."""

    def publish(self, batch: bytes) -> None:
        """Take a batch (`kv_event_wire.decode_batch` reads it), and return at once: the event loop waits for it."""
        ...


class KvEventBoard:
    """Hands events to those who want them: the publisher that the options ask for, and a sink in this process.

    Args:
        config: of the engines.
        counts: kept up to date.
        sink: None: there is none.

    Raises:
        ConfigError: the options contradict each other.
    """

    def __init__(self, config: EngineConfig, counts: KvEventCounts, sink: KvEventSink | None = None) -> None:
        self._settings = kv_event_settings(config.kv_events, has_prefix_cache=config.cache.enable_prefix_caching)
        self._counts = counts
        self._sinks: list[KvEventSink] = [] if sink is None else [sink]
        self._publisher: KvEventPublisher | None = None

    @property
    def is_on(self) -> bool:
        """Whether events are wanted."""
        return self._settings is not None or bool(self._sinks)

    def open(self) -> None:
        """Begin to publish, if the options ask for it. Called once.

        Raises:
            ConfigError: an address cannot be used.
        """
        if self._settings is None:
            return
        if (warning := exposure_warning(self._settings)) is not None:
            LOGGER.warning("%s", warning)
        publisher = self._publisher = KvEventPublisher(self._settings, self._counts)
        self._sinks.append(publisher)
        replay = f", missed ones at {publisher.replay_endpoint}" if publisher.replay_endpoint else ""
        LOGGER.info("KV events are published at %s%s", publisher.endpoint, replay)

    def publish(self, batch: bytes) -> None:
        """Hand on a batch of an engine."""
        for sink in self._sinks:
            sink.publish(batch)

    def cleared(self) -> None:
        """Report that the engine has ended, and all its pages with it."""
        if self._sinks:
            self.publish(encode_batch(EventBatch(time.time(), (PagesCleared(),))))

    def close(self) -> None:
        """Publish no more. May be called again."""
        if self._publisher is not None:
            self._publisher.close()


class KvEventSender:
    """A listener of a prefix cache (`engine.page_feed.PageListener`) that sends what it hears.

    Args:
        send: queues a message to the server, and returns at once.
        now: seconds since 1970.
    """

    def __init__(self, send: Callable[[KvEvents], None], now: Callable[[], float] = time.time) -> None:
        self._send = send
        self._now = now
        self.name_of: Callable[[str], str] = str
        """Returns a name of the adapter with a digest. Set when there is an engine."""

    def publish(self, events: Sequence[PageEvent]) -> None:
        self._send(KvEvents(encode_batch(EventBatch(self._now(), tuple(events)), self.name_of)))
