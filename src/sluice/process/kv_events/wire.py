"""KV events as bytes, in the format of vLLM (its `distributed/kv_events.py` of late 2025), which routers read.

A batch is a MessagePack array `[time, [event, ...], 0]`, in which each event is an array as well:

    ["BlockStored", hashes, parent hash or nil, token ids, block size, nil, medium, nil]
    ["BlockStored", ..., [[namespace], nil, ...]]       with the keys of each block beside its tokens, if it has any
    ["BlockRemoved", hashes, medium]
    ["AllBlocksCleared"]

Hashes are bytes: the digests of pages. The medium is GPU for the device, whatever it is, CPU or DISK. vLLM has LoRA
adapters where there is nil. As in vLLM the salt of a namespace is a key of the first block of a context alone, since
the hashes of those behind it cover it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.wire import WireError
from sluice.types import Tier

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
MEDIA: Mapping[Tier, str] = MappingProxyType({Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK"})
TIERS: Mapping[str, Tier] = MappingProxyType({medium: tier for tier, medium in MEDIA.items()})
RANK = 0
"""vLLM's data-parallel rank: an engine here has none."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[float, list[list[Any]], int])


class EventBatch(NamedTuple):
    """The events of one turn of an engine."""

    time: float
    """Seconds since 1970."""
    events: tuple[PageEvent, ...]


def encode_batch(batch: EventBatch) -> bytes:
    """Return a batch as bytes."""
    return _ENCODER.encode((batch.time, [_encoded(event) for event in batch.events], RANK))


def decode_batch(data: bytes) -> EventBatch:
    """Return the batch in `data`. Namespaces are known of the first pages of contexts alone.

    Raises:
        WireError: it is none.
    """
    try:
        time, events, _ = _DECODER.decode(data)
        return EventBatch(time, tuple(_decoded(*event) for event in events))
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise WireError(f"not a batch of KV events ({len(data)} bytes): {error}") from error


def _encoded(event: PageEvent) -> Sequence[Any]:
    match event:
        case PagesStored(parent, digests, token_ids, page_size, extra_key, tier):
            fields: list[Any] = [STORED, digests, parent, token_ids, page_size, None, MEDIA[tier], None]
            if parent is None and extra_key:
                fields.append([[extra_key], *[None] * (len(digests) - 1)])
            return fields
        case PagesRemoved(digests, tier):
            return (REMOVED, digests, MEDIA[tier])
        case PagesCleared():
            return (CLEARED,)


def _decoded(tag: str, *fields: Any) -> PageEvent:
    if tag == STORED:
        digests, parent, token_ids, page_size, _, medium, _, *keys = fields
        extra_key = keys[0][0][0] if keys else ""
        return PagesStored(parent, tuple(digests), tuple(token_ids), page_size, extra_key, TIERS[medium])
    if tag == REMOVED:
        digests, medium = fields
        return PagesRemoved(tuple(digests), TIERS[medium])
    if tag == CLEARED:
        return PagesCleared()
    raise ValueError(f"unknown event {tag!r}")
