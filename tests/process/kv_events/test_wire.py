"""The bytes of KV events, read by a decoder of MessagePack that knows nothing of Sluice or of its serializer."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.kv_events.board import KvEventSender
from sluice.process.kv_events.wire import EventBatch, decode_batch, encode_batch
from sluice.process.wire import KvEvents, WireError, decode, encode
from sluice.types import Tier, namespace_of

FIRST = PagesStored(None, (b"a" * 16, b"b" * 16), (1, 200, 70_000, 4), 2, "", Tier.DEVICE)
SALTED = PagesStored(None, (b"c" * 16, b"d" * 16), (5, 6, 7, 8), 2, "tenant", Tier.HOST)
BEHIND = PagesStored(b"d" * 16, (b"e" * 16,), (9, 9), 2, "tenant", Tier.DISK)
DIGEST = "0123456789abcdef" * 4
WITH_ADAPTER = PagesStored(None, (b"f" * 16, b"g" * 16), (1, 2, 3, 4), 2, namespace_of(DIGEST, "tenant"), Tier.DEVICE)
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
        if kind < 0x90:
            return {self.read(): self.read() for _ in range(kind & 15)}
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


def stored(hashes: list[bytes], parent: bytes | None, tokens: list[int], medium: str, **others: Any) -> dict[str, Any]:
    """A map with the fields of vLLM's `BlockStored`, in its order."""
    lora = {"lora_id": None, "medium": medium, "lora_name": None}
    head = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return {**head, "block_size": 2, **lora, **others}


def test_the_maps_of_vllm() -> None:
    """vLLM's own types (0.32 and later) refuse arrays: events are maps, by the names of their fields."""
    assert Plain(encode_batch(EventBatch(12.5, EVENTS))).read() == {
        "ts": 12.5,
        "events": [
            stored([b"a" * 16, b"b" * 16], None, [1, 200, 70_000, 4], "GPU"),
            stored([b"c" * 16, b"d" * 16], None, [5, 6, 7, 8], "CPU", extra_keys=[["tenant"], None]),
            stored([b"e" * 16], b"d" * 16, [9, 9], "STORAGE"),
            {"type": "BlockRemoved", "block_hashes": [b"a" * 16], "medium": "STORAGE"},
            {"type": "AllBlocksCleared"},
        ],
        "data_parallel_rank": 0,
    }


def test_the_arrays_of_older_servers_are_read() -> None:
    arrays = [
        ["BlockStored", [b"a" * 16, b"b" * 16], None, [1, 200, 70_000, 4], 2, None, "GPU", None],
        ["BlockStored", [b"c" * 16, b"d" * 16], None, [5, 6, 7, 8], 2, None, "CPU", None, [["tenant"], None]],
        ["BlockRemoved", [b"a" * 16], "DISK"],
        ["AllBlocksCleared"],
    ]
    found = decode_batch(msgspec.msgpack.encode([12.5, arrays, 0]))
    assert found == EventBatch(12.5, (FIRST, SALTED, *EVENTS[3:]))


def test_fields_of_newer_servers_are_passed_over() -> None:
    event = stored([b"e" * 16], b"d" * 16, [9, 9], "STORAGE", group_idx=0, kv_cache_spec_kind="full_attention")
    (found,) = decode_batch(msgspec.msgpack.encode({"ts": 1.0, "events": [event]})).events
    assert found == PagesStored(b"d" * 16, (b"e" * 16,), (9, 9), 2, "", Tier.DISK)


def test_a_batch_of_thousands_of_tokens() -> None:
    """Long arrays and byte strings have other heads."""
    tokens = tuple(range(4000))
    digests = tuple(bytes([page % 256]) * 16 for page in range(250))
    event = PagesStored(None, digests, tokens, 16, "", Tier.DEVICE)
    data = encode_batch(EventBatch(0.0, (event,)))
    assert Plain(data).read()["events"][0]["token_ids"] == list(tokens)
    assert decode_batch(data).events == (event,)


def test_what_is_sent_comes_back() -> None:
    """Namespaces are known of the first pages alone."""
    found = decode_batch(encode_batch(EventBatch(12.5, EVENTS)))
    unnamed = PagesStored(BEHIND.parent, BEHIND.digests, BEHIND.token_ids, 2, "", Tier.DISK)
    assert found == EventBatch(12.5, (FIRST, SALTED, unnamed, *EVENTS[3:]))


def test_an_adapter_is_a_key_of_each_block() -> None:
    """A router that took the blocks of two adapters for the same would send requests to a replica without their KV."""
    behind = PagesStored(b"g" * 16, (b"h" * 16,), (5, 6), 2, WITH_ADAPTER.extra_key, Tier.DEVICE)
    data = encode_batch(EventBatch(0.0, (WITH_ADAPTER, behind)), {DIGEST: "sql"}.__getitem__)
    first, second = Plain(data).read()["events"]
    assert (first["lora_id"], first["lora_name"]) == (0x0123456789ABC, "sql")
    assert first["extra_keys"] == [[DIGEST, "tenant"], [DIGEST]]
    assert second["extra_keys"] == [[DIGEST]]
    assert decode_batch(data).events[0] == WITH_ADAPTER


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xc0", encode_batch(EventBatch(0.0, EVENTS))[:-9]])
def test_what_is_no_batch(data: bytes) -> None:
    with pytest.raises(WireError, match="not a batch of KV events"):
        decode_batch(data)


def test_an_engine_sends_a_batch_a_turn() -> None:
    sent: list[KvEvents] = []
    KvEventSender(sent.append, now=lambda: 3.0).publish(EVENTS)
    (frame,) = sent
    assert decode(encode(frame)) == frame
    assert Plain(frame.batch).read()["ts"] == 3.0
