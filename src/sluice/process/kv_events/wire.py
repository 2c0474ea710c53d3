"""KV events as bytes, in the format of vLLM since 0.32 (its `distributed/kv_events.py`), which routers read.

A batch is a MessagePack map, and so is each of its events:

    {"ts": time, "events": [event, ...], "data_parallel_rank": 0}
    {"type": "BlockStored", "block_hashes": [hash, ...], "parent_block_hash": hash or nil, "token_ids": [id, ...],
     "block_size": tokens, "lora_id": nil, "medium": medium, "lora_name": nil, "extra_keys": [[salt], nil, ...]}
    {"type": "BlockRemoved", "block_hashes": [hash, ...], "medium": medium}
    {"type": "AllBlocksCleared"}

Hashes are bytes: the digests of pages. The medium is GPU for the device, whatever it is, CPU or STORAGE. As in vLLM the
salt of a namespace is a key of the first block of a context alone, since the hashes of those behind it cover it, and an
adapter is a key of each block, before the salt. It is named by the digest of its content there, and by `lora_id`, a
number made of that; `lora_name` is a name that it has. Of other blocks `extra_keys` is left out.

Until 0.31 vLLM wrote arrays of the same fields, without their names, and DISK for STORAGE. Both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.wire import WireError
from sluice.types import Tier, namespace_of, parts_of

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
MEDIA: Mapping[Tier, str] = MappingProxyType({Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE"})
TIERS: Mapping[str, Tier] = MappingProxyType({medium: tier for tier, medium in MEDIA.items()} | {"DISK": Tier.DISK})
ID_DIGITS = 13
"""Hexadecimal digits of an adapter's digest that make its number: a JSON number holds them exactly."""
RANK = 0
"""vLLM's data-parallel rank: an engine here has none."""


class _Stored(msgspec.Struct, tag=STORED, omit_defaults=True, gc=False):
    block_hashes: tuple[bytes, ...]
    parent_block_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None


class _Removed(msgspec.Struct, tag=REMOVED, omit_defaults=True, gc=False):
    block_hashes: tuple[bytes, ...]
    medium: str | None


class _Cleared(msgspec.Struct, tag=CLEARED, gc=False):
    pass


_Event = _Stored | _Removed | _Cleared


class _Batch(msgspec.Struct, omit_defaults=True, gc=False):
    ts: float
    events: list[_Event]
    data_parallel_rank: int | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Batch | tuple[float, list[list[Any]], int | None])


class EventBatch(NamedTuple):
    """The events of one turn of an engine."""

    time: float
    """Seconds since 1970."""
    events: tuple[PageEvent, ...]


def encode_batch(batch: EventBatch, name_of: Callable[[str], str] = str) -> bytes:
    """Return a batch as bytes.

    Args:
        name_of: returns a name of the adapter with a digest.
    """
    return _ENCODER.encode(_Batch(batch.time, [_encoded(event, name_of) for event in batch.events], RANK))


def decode_batch(data: bytes) -> EventBatch:
    """Return the batch in `data`. Namespaces are known of the first pages of contexts alone.

    Raises:
        WireError: it is none.
    """
    try:
        found = _DECODER.decode(data)
        if isinstance(found, _Batch):
            return EventBatch(found.ts, tuple(map(_decoded, found.events)))
        time, events, _ = found
        return EventBatch(time, tuple(_decoded(_named(*event)) for event in events))
    except (msgspec.MsgspecError, TypeError, ValueError, KeyError, IndexError) as error:
        raise WireError(f"not a batch of KV events ({len(data)} bytes): {error}") from error


def _encoded(event: PageEvent, name_of: Callable[[str], str]) -> _Event:
    match event:
        case PagesStored(parent, digests, token_ids, page_size, extra_key, tier):
            adapter, salt = parts_of(extra_key)
            of_all, of_first = [adapter] if adapter else [], [salt] if parent is None and salt else []
            keys: list[list[Any] | None] = [of_all + of_first or None, *[of_all or None] * (len(digests) - 1)]
            number, name = (int(adapter[:ID_DIGITS], 16), name_of(adapter)) if adapter else (None, None)
            shown = keys if of_all or of_first else None
            return _Stored(tuple(digests), parent, tuple(token_ids), page_size, number, MEDIA[tier], name, shown)
        case PagesRemoved(digests, tier):
            return _Removed(tuple(digests), MEDIA[tier])
        case PagesCleared():
            return _Cleared()


def _decoded(event: _Event) -> PageEvent:
    match event:
        case _Stored():
            keys = list(event.extra_keys[0] or ()) if event.extra_keys else []
            adapter = keys.pop(0) if keys and event.lora_name is not None else ""
            extra_key = namespace_of(adapter, keys[0] if keys else "")
            tier = TIERS[event.medium or ""]
            return PagesStored(
                event.parent_block_hash, event.block_hashes, event.token_ids, event.block_size, extra_key, tier
            )
        case _Removed(hashes, medium):
            return PagesRemoved(hashes, TIERS[medium or ""])
        case _Cleared():
            return PagesCleared()


def _named(tag: str, *fields: Any) -> _Event:
    """Return an event of the older form."""
    names = _Stored.__struct_fields__ if tag == STORED else _Removed.__struct_fields__ if tag == REMOVED else ()
    event: _Event = msgspec.convert({"type": tag, **dict(zip(names, fields, strict=False))}, _Event)
    return event
