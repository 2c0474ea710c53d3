"""The bytes of KV events, read by a decoder of MessagePack that knows nothing of Sluice or of its serializer."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.kv_events.board import KvEventSender
from sluice.process.kv_events.wire import EventBatch, decode_batch, encode_batch
from sluice.process.wire import KvEvents, WireError, decode, encode
from sluice.types import Tier

FIRST = PagesStored(None, (b"a" * 16, b"b" * 16), (1, 200, 70_000, 4), 2, "", Tier.DEVICE)
SALTED = PagesStored(None, (b"c" * 16, b"d" * 16), (5, 6, 7, 8), 2, "tenant", Tier.HOST)
BEHIND = PagesStored(b"d" * 16, (b"e" * 16,), (9, 9), 2, "tenant", Tier.DISK)
EVENTS: tuple[PageEvent, ...] = (FIRST, SALTED, BEHIND, PagesRemoved((b"a" * 16,), Tier.DISK), PagesCleared())


class Plain:
    """A reader of MessagePack, as its specification has it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self) -> Any:
        kind = self._byte()
        if kind < 0x80:
            return kind
        if 0x90 <= kind < 0xA0:
            return [self.read() for _ in range(kind & 15)]
        if 0xA0 <= kind < 0xC0:
            return self._take(kind & 31).decode()
        simple = {0xC0: None, 0xC2: False, 0xC3: True}
        if kind in simple:
            return simple[kind]
        sized = {0xC4: ">B", 0xC5: ">H", 0xD9: ">B", 0xDC: ">H"}
        if kind in sized:
            size = self._number(sized[kind])
            if kind == 0xDC:
                return [self.read() for _ in range(size)]
            return self._take(size).decode() if kind == 0xD9 else self._take(size)
        return self._number({0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}[kind])

    def _byte(self) -> int:
        return self._take(1)[0]

    def _number(self, kind: str) -> Any:
        return struct.unpack(kind, self._take(struct.calcsize(kind)))[0]

    def _take(self, count: int) -> bytes:
        self._at += count
        assert self._at <= len(self._data), "the message is cut off"
        return self._data[self._at - count : self._at]


def test_the_arrays_of_vllm() -> None:
    """Routers take the fields by their places: BlockStored has hashes, parent, tokens, block size, LoRA id, medium,
    LoRA name and keys; a batch has its time, events and rank."""
    assert Plain(encode_batch(EventBatch(12.5, EVENTS))).read() == [
        12.5,
        [
            ["BlockStored", [b"a" * 16, b"b" * 16], None, [1, 200, 70_000, 4], 2, None, "GPU", None],
            ["BlockStored", [b"c" * 16, b"d" * 16], None, [5, 6, 7, 8], 2, None, "CPU", None, [["tenant"], None]],
            ["BlockStored", [b"e" * 16], b"d" * 16, [9, 9], 2, None, "DISK", None],
            ["BlockRemoved", [b"a" * 16], "DISK"],
            ["AllBlocksCleared"],
        ],
        0,
    ]


def test_a_batch_of_thousands_of_tokens() -> None:
    """Long arrays and byte strings have other heads."""
    tokens = tuple(range(4000))
    digests = tuple(bytes([page % 256]) * 16 for page in range(250))
    event = PagesStored(None, digests, tokens, 16, "", Tier.DEVICE)
    data = encode_batch(EventBatch(0.0, (event,)))
    assert Plain(data).read()[1][0][3] == list(tokens)
    assert decode_batch(data).events == (event,)


def test_what_is_sent_comes_back() -> None:
    """Namespaces are known of the first pages alone."""
    found = decode_batch(encode_batch(EventBatch(12.5, EVENTS)))
    unnamed = PagesStored(BEHIND.parent, BEHIND.digests, BEHIND.token_ids, 2, "", Tier.DISK)
    assert found == EventBatch(12.5, (FIRST, SALTED, unnamed, *EVENTS[3:]))


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xc0", encode_batch(EventBatch(0.0, EVENTS))[:-9]])
def test_what_is_no_batch(data: bytes) -> None:
    with pytest.raises(WireError, match="not a batch of KV events"):
        decode_batch(data)


def test_an_engine_sends_a_batch_a_turn() -> None:
    sent: list[KvEvents] = []
    KvEventSender(sent.append, now=lambda: 3.0).publish(EVENTS)
    (frame,) = sent
    assert decode(encode(frame)) == frame
    assert Plain(frame.batch).read()[0] == 3.0
