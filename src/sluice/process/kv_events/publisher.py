"""Publishes KV events by ZMQ as vLLM does: a stream of numbered batches, and a socket to ask for missed ones.

    publish -> queue, bounded -> thread -> PUB      topic | number | batch
                  buffer of the latest  -> ROUTER   number -> (number | batch) for each from there on, then -1

It lives in the server, so numbers continue when the engine is replaced. `publish` never waits: a batch that finds a
full queue is dropped, and leaves a gap in the numbers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import zmq

from sluice.config import ConfigError, Endpoint, KvEventSettings, flag
from sluice.process.engine_state import KvEventCounts

LOGGER = logging.getLogger("sluice.server")
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
"""The number that ends an answer to a request for missed batches."""
CLOSE_SECONDS = 1.0
"""Time for the thread to publish what is queued."""
LINGER_MS = 200
AT_ONCE = 64
"""Batches that are published between two looks at requests."""


class _Batch(NamedTuple):
    number: bytes
    payload: bytes


class EventQueue:
    """Numbers batches, queues them for the thread, and keeps the latest ones. Any thread may call it.

    Args:
        max_queued: batches that may wait.
        buffer_steps: batches that are kept.
    """

    def __init__(self, max_queued: int, buffer_steps: int) -> None:
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._queued: deque[_Batch] = deque()
        self._kept: deque[_Batch] = deque(maxlen=buffer_steps)
        self._next = 0

    def add(self, payload: bytes) -> bool:
        """Number a batch and queue it. Returns False if it was dropped, although it is kept like the others."""
        with self._lock:
            batch = _Batch(self._next.to_bytes(NUMBER_BYTES, "big"), payload)
            self._next += 1
            self._kept.append(batch)
            if len(self._queued) >= self._max_queued:
                return False
            self._queued.append(batch)
            return True

    def take(self, count: int) -> list[_Batch]:
        """Take at most `count` batches out of the queue, oldest first."""
        with self._lock:
            return [self._queued.popleft() for _ in range(min(count, len(self._queued)))]

    def kept(self, first: int) -> list[_Batch]:
        """Return the batches that are kept, from number `first` on."""
        with self._lock:
            return [batch for batch in self._kept if int.from_bytes(batch.number, "big") >= first]


class KvEventPublisher:
    """Publishes batches of events, by a thread of its own.

    Args:
        settings: where, and how many are kept.
        counts: kept up to date.

    Raises:
        ConfigError: an address cannot be listened on.
    """

    def __init__(self, settings: KvEventSettings, counts: KvEventCounts) -> None:
        self.counts = counts
        self.settings = settings
        self._topic = settings.topic.encode()
        self._queue = EventQueue(settings.max_queue_size, settings.buffer_steps if settings.replay_endpoint else 0)
        self._is_open = True
        with ExitStack() as undo:
            context = zmq.Context()
            undo.callback(context.term)
            self._publishing = undo.enter_context(closing(context.socket(zmq.PUB)))
            self._publishing.set(zmq.SNDHWM, settings.hwm)
            self.endpoint = _open(self._publishing, settings.endpoint, "kv_events_endpoint")
            self._replaying: zmq.Socket[bytes] | None = None
            self.replay_endpoint: str | None = None
            if settings.replay_endpoint is not None:
                self._replaying = undo.enter_context(closing(context.socket(zmq.ROUTER)))
                self._replaying.set(zmq.SNDHWM, 2 + settings.buffer_steps)  # an answer fits; more of one are dropped
                self.replay_endpoint = _open(self._replaying, settings.replay_endpoint, "kv_events_replay_endpoint")
            self._opened = undo.pop_all()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, payload: bytes) -> None:
        """Queue a batch and return at once. After `close`, do nothing."""
        if not self._is_open:
            return
        if not self._queue.add(payload):
            self.counts.dropped += 1
        self._notify()

    def close(self) -> None:
        """Publish what is queued, in `CLOSE_SECONDS` at most, and close the sockets. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._notify()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # else it still reads the pipe
            os.close(self._woken)
            os.close(self._wake)

    def _notify(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self._wake, b"\0")

    def _run(self) -> None:
        with self._opened:
            poller = zmq.Poller()
            poller.register(self._woken, zmq.POLLIN)
            if self._replaying is not None:
                poller.register(self._replaying, zmq.POLLIN)
            while self._publish_queued() or self._is_open:
                if self._is_open:
                    poller.poll()
                with suppress(BlockingIOError):
                    os.read(self._woken, 1 << 16)
                if self._replaying is not None:
                    self._answer(self._replaying)
            for socket in (self._publishing, *filter(None, [self._replaying])):
                socket.set(zmq.LINGER, LINGER_MS)

    def _publish_queued(self) -> bool:
        """Publish some batches. Returns whether more may wait. A PUB socket never blocks: it drops what a subscriber is
        too slow for."""
        batches = self._queue.take(AT_ONCE)
        for batch in batches:
            self._publishing.send_multipart((self._topic, *batch))
            self.counts.published += 1
        if len(batches) == AT_ONCE:
            self._notify()
        return bool(batches)

    def _answer(self, replaying: zmq.Socket[bytes]) -> None:
        """Send kept batches to one who asked. A ROUTER socket never blocks: it drops what one is too slow for."""
        try:
            client, *request = replaying.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(request) != 2 or request[0] or len(request[1]) != NUMBER_BYTES:
            LOGGER.debug("a request for missed KV events that is none: %d parts", len(request))
            return
        for batch in self._queue.kept(int.from_bytes(request[1], "big")):
            replaying.send_multipart((client, b"", *batch))
            self.counts.replayed += 1
        replaying.send_multipart((client, b"", END, b""))


def _open(socket: zmq.Socket[bytes], endpoint: Endpoint, name: str) -> str:
    """Bind or connect a socket, and return its address, with the port if that was left open.

    Raises:
        ConfigError: it cannot be listened on, naming the option.
    """
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IPV6, "[" in endpoint.address)
    try:
        if not endpoint.binds:
            socket.connect(endpoint.address)
            return endpoint.address
        socket.bind(endpoint.address)
    except zmq.ZMQError as error:
        raise ConfigError(f"{flag(name)} {endpoint.address} cannot be used: {error.strerror}") from error
    return socket.get_string(zmq.LAST_ENDPOINT)


def exposure_warning(settings: KvEventSettings) -> str | None:
    """Return a warning if other machines can read what is published, else None."""
    ends = [end for end in (settings.endpoint, settings.replay_endpoint) if end is not None and not end.is_local]
    if not ends:
        return None
    shown = " and ".join(end.address for end in ends)
    return (
        f"KV events at {shown} carry the tokens of prompts, and leave this machine without encryption or a key; see"
        " docs/security.md"
    )
