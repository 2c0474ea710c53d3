"""Values to bytes and back: what the server, the engine and (later) the ranks say to each other.

The only place that knows the serializer of messages. A frame is a MessagePack array `[tag, value]`; the tag chooses the
type that the value is checked against, so nothing is ever built from a frame that its type does not allow (and no
pickle).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluice.config import EngineConfig
from sluice.engine.messages import Abort, Copied, FlushCache, Message, QueryStats, Shutdown, Stats, Submit
from sluice.footprint import Footprint
from sluice.limits import Limits
from sluice.types import Output


@dataclass(frozen=True, slots=True)
class Start:
    """Server to engine, once and first: build an engine. `factory` is "module:function" (see `engine_process`)."""

    factory: str
    config: EngineConfig
    log_level: str = "warning"
    log_format: str = "text"
    epoch: int = 0
    """Number of the engine among those of its server."""
    faults: str = ""
    """What is to go wrong in it (see `faults`)."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine to server, once: the model is loaded. `folder` is where the checkpoint (and its tokenizer) lies."""

    model: str
    folder: str
    limits: Limits
    eos_token_ids: tuple[int, ...]
    is_bundled: bool = False
    """The model that comes with Sluice."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Resolved."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Option -> why it has its value, for those that were derived."""
    memory: Footprint = field(default_factory=Footprint)
    """What is allocated."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine to server: why it cannot start, instead of `Ready`, or cannot go on; in one line for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """Engine to server: what one step gave."""

    outputs: tuple[Output, ...]


Frame = Message | Outputs | Stats | Start | Ready | Failed

_TYPES: dict[str, Any] = {
    "submit": Submit,
    "abort": Abort,
    "query_stats": QueryStats,
    "flush_cache": FlushCache,
    "copied": Copied,
    "stats": Stats,
    "shutdown": Shutdown,
    "outputs": tuple[Output, ...],
    "start": Start,
    "ready": Ready,
    "failed": Failed,
}
_TAGS = {kind: tag for tag, kind in _TYPES.items() if tag != "outputs"}
_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_DECODERS = {tag: msgspec.msgpack.Decoder(kind) for tag, kind in _TYPES.items()}


class WireError(ValueError):
    """A frame that is none of the known messages."""


def encode(frame: Frame) -> bytes:
    """The bytes of a message."""
    if isinstance(frame, Outputs):
        return encode_outputs(frame.outputs)
    return _ENCODER.encode((_TAGS[type(frame)], frame))


def encode_outputs(outputs: Sequence[Output]) -> bytes:
    """`encode(Outputs(tuple(outputs)))` without the copy: it is made once per step."""
    return _ENCODER.encode(("outputs", outputs))


def decode(data: bytes) -> Frame:
    """The message in `data`, equal to the one encoded.

    Raises:
        WireError: truncated or foreign bytes, an unknown tag, or a value that its type refuses.
    """
    try:
        tag, value = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a [tag, value] frame ({len(data)} bytes): {error}") from error
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise WireError(f"unknown message {tag!r}; known: {', '.join(_DECODERS)}")
    try:
        content = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"bad {tag!r} message: {error}") from error
    return Outputs(content) if tag == "outputs" else content
