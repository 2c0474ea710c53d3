"""KV events as subscribers get them: in order, numbered, and again if they ask."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import zmq

from sluice.config import ConfigError, Endpoint, EngineConfig, KvEventSettings
from sluice.process.engine_state import KvEventCounts
from sluice.process.kv_events.board import KvEventBoard
from sluice.process.kv_events.publisher import END, EventQueue, KvEventPublisher, exposure_warning
from sluice.process.kv_events.wire import decode_batch

ANYWHERE = Endpoint("tcp://127.0.0.1:*", binds=True, is_local=True)
SETTINGS = KvEventSettings(ANYWHERE, ANYWHERE, topic="kv")
WAIT_MS = 20_000
"""Longer than any message takes."""


class Subscriber:
    """A client of a publisher, as a router is one."""

    def __init__(self, publisher: KvEventPublisher, topic: str = "") -> None:
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.set(zmq.RCVHWM, publisher.settings.hwm)
        self._events.set_string(zmq.SUBSCRIBE, topic)
        self._events.connect(publisher.endpoint)
        self._asking = self._context.socket(zmq.DEALER)
        if publisher.replay_endpoint is not None:
            self._asking.connect(publisher.replay_endpoint)
        for socket in (self._events, self._asking):
            socket.set(zmq.RCVTIMEO, WAIT_MS)
            socket.set(zmq.LINGER, 0)
        while not self.has_message():  # until the subscription has arrived
            publisher.publish(b"hello")

    def received(self) -> tuple[bytes, int, bytes]:
        """The next message: topic, number and batch."""
        topic, number, batch = self._events.recv_multipart()
        return topic, int.from_bytes(number, "big"), batch

    def has_message(self) -> bool:
        """Whether one comes soon."""
        return bool(self._events.poll(20))

    def until(self, batch: bytes) -> list[tuple[bytes, int, bytes]]:
        """The messages up to this batch."""
        found = [self.received()]
        while found[-1][2] != batch:
            found.append(self.received())
        return found

    def replayed(self, first: int) -> list[tuple[int, bytes]]:
        """The batches from a number on, as far as they are kept."""
        self._asking.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while True:
            _, number, batch = self._asking.recv_multipart()
            if number == END:
                return found
            found.append((int.from_bytes(number, "big"), batch))

    def close(self) -> None:
        self._events.close()
        self._asking.close()
        self._context.term()


@contextmanager
def opened(settings: KvEventSettings = SETTINGS, topic: str = "") -> Iterator[tuple[KvEventPublisher, Subscriber]]:
    publisher = KvEventPublisher(settings, KvEventCounts())
    try:
        subscriber = Subscriber(publisher, topic)
        try:
            yield publisher, subscriber
        finally:
            subscriber.close()
    finally:
        publisher.close()


def test_batches_come_in_order_and_again() -> None:
    """A subscriber that lost messages asks for them from the first on that it has not seen."""
    with opened() as (publisher, subscriber):
        for batch in (b"one", b"two", b"three"):
            publisher.publish(batch)
        *_, (topic, first, _), (_, second, _), (_, third, _) = subscriber.until(b"three")
        assert (topic, second, third) == (b"kv", first + 1, first + 2)
        assert subscriber.replayed(first) == [(first, b"one"), (second, b"two"), (third, b"three")]
        assert subscriber.replayed(third + 1) == []
        assert publisher.counts.dropped == 0
        assert publisher.counts.replayed == 3


def test_a_topic_is_chosen_by_its_beginning() -> None:
    with opened(replace(SETTINGS, topic="kv@pod"), topic="kv@") as (publisher, subscriber):
        publisher.publish(b"batch")
        assert subscriber.until(b"batch")[-1][0] == b"kv@pod"


def test_as_many_batches_are_kept_as_asked_for() -> None:
    with opened(replace(SETTINGS, buffer_steps=2)) as (publisher, subscriber):
        for batch in (b"one", b"two", b"three"):
            publisher.publish(batch)
        subscriber.until(b"three")
        assert [batch for _, batch in subscriber.replayed(0)] == [b"two", b"three"]


def test_a_request_that_is_none_is_ignored() -> None:
    """What other programs send to the port must not end the thread."""
    with opened() as (publisher, subscriber):
        for parts in ((b"",), (b"", b"1"), (b"GET / HTTP/1.1",), (b"", b"", b"")):
            subscriber._asking.send_multipart(parts)
        publisher.publish(b"batch")
        subscriber.until(b"batch")
        assert subscriber.replayed(0)[-1][1] == b"batch"


def test_batches_that_find_the_queue_full_leave_a_gap() -> None:
    """A publisher that waited would keep a step waiting; one that numbered only what it sends would hide the loss."""
    queue = EventQueue(max_queued=2, buffer_steps=10)
    assert [queue.add(b"%d" % number) for number in range(4)] == [True, True, False, False]
    assert [int.from_bytes(batch.number, "big") for batch in queue.take(1)] == [0]
    assert queue.add(b"4")
    assert [int.from_bytes(batch.number, "big") for batch in queue.take(10)] == [1, 4]
    assert queue.take(10) == []
    assert [batch.payload for batch in queue.kept(2)] == [b"2", b"3", b"4"]


def test_a_slow_subscriber_misses_what_is_too_much() -> None:
    """What waits for it is bounded, no one else waits for it, and the numbers tell it what it missed."""
    with opened(replace(SETTINGS, hwm=4)) as (publisher, subscriber):
        for _ in range(300):
            publisher.publish(bytes(200_000))
        numbers = [subscriber.received()[1]]
        while numbers[-1] < 300:
            publisher.publish(b"later")
            if subscriber.has_message():
                numbers.append(subscriber.received()[1])
        assert numbers == sorted(numbers)
        assert len(numbers) < 300


def test_an_address_in_use_is_named() -> None:
    with opened() as (publisher, _):
        taken = Endpoint(publisher.endpoint, binds=True, is_local=True)
        with pytest.raises(ConfigError, match=f"--kv-events-endpoint {taken.address} cannot be used: Address already"):
            KvEventPublisher(KvEventSettings(taken), KvEventCounts())
        with pytest.raises(ConfigError, match=r"--kv-events-replay-endpoint .* cannot be used"):
            KvEventPublisher(KvEventSettings(ANYWHERE, taken), KvEventCounts())


def test_closing_publishes_what_is_queued() -> None:
    with opened() as (publisher, subscriber):
        for number in range(500):
            publisher.publish(b"%d" % number)
        publisher.close()
        publisher.publish(b"after the end")
        publisher.close()
        assert subscriber.until(b"499")


def test_a_board_publishes_what_the_options_say(caplog: pytest.LogCaptureFixture) -> None:
    """Addresses that other machines can read are warned of: events carry prompts."""
    counts = KvEventCounts()
    options = {"kv_events": True, "kv_events_endpoint": "tcp://*:*"}
    board = KvEventBoard(EngineConfig.from_options(options), counts)
    assert board.is_on
    with caplog.at_level(logging.WARNING, "sluice.server"):
        board.open()
    board.cleared()
    board.close()
    assert counts.published == 1
    assert "KV events at tcp://*:* carry the tokens of prompts" in caplog.text
    assert exposure_warning(SETTINGS) is None


def test_a_board_with_a_sink_of_this_process() -> None:
    """A router in the process of the server needs no socket."""

    class Sink:
        def __init__(self) -> None:
            self.batches: list[bytes] = []

        def publish(self, batch: bytes) -> None:
            self.batches.append(batch)

    sink = Sink()
    board = KvEventBoard(EngineConfig(), KvEventCounts(), sink)
    assert board.is_on
    board.open()
    board.publish(b"batch")
    board.cleared()
    assert sink.batches[0] == b"batch"
    assert len(decode_batch(sink.batches[1]).events) == 1
    assert not KvEventBoard(EngineConfig(), KvEventCounts()).is_on
