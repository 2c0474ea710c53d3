"""Messages between the server and its engine as bytes, and the stamps that number them.

A frame is a MessagePack array `[tag, value]`. The tag chooses the type that the value is checked against, so decoding
builds only values that their types allow, and needs no pickle. No other module knows the serializer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluice.config import EngineConfig
from sluice.engine.messages import Abort, BlocksLoaded, Copied, FlushCache, Message, QueryStats, Shutdown, Stats
from sluice.footprint import Footprint
from sluice.limits import Limits
from sluice.types import Output, Submit

FACTORY = "sluice.process.engine_process:build"
"""The factory that `sluice serve` uses."""


@dataclass(frozen=True, slots=True)
class Start:
    """Server to engine, once and first: how to build the engine."""

    config: EngineConfig
    factory: str = FACTORY
    """The function that builds it, as "module:function"; it has the type `engine_process.Factory`."""
    log_level: str = "warning"
    log_format: str = "text"
    faults: str = ""
    """Faults to inject (see `faults`)."""
    epoch: int = 0
    """Number of the engine among the engines of its server, from 0."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine to server, once: the model is loaded."""

    model: str
    folder: str
    """Where the checkpoint lies, with its tokenizer."""
    limits: Limits
    eos_token_ids: tuple[int, ...]
    is_bundled: bool = False
    """The model is the one that comes with Sluice."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Resolved."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Option -> why it has its value, for options that were derived."""
    memory: Footprint = field(default_factory=Footprint)
    """Allocated bytes, by part."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine to server: why it cannot start (instead of `Ready`) or continue, in one line for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """Engine to server: the outputs of one step."""

    outputs: tuple[Output, ...]


Frame = Message | Outputs | Stats | Start | Ready | Failed

_TYPES: dict[str, Any] = {
    "submit": Submit,
    "abort": Abort,
    "query_stats": QueryStats,
    "flush_cache": FlushCache,
    "copied": Copied,
    "blocks_loaded": BlocksLoaded,
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
_STAMP = struct.Struct("<QQ")


class WireError(ValueError):
    """A message that cannot be decoded, is unexpected, or follows one that was lost."""


def encode(frame: Frame) -> bytes:
    """Return the bytes of a message."""
    if isinstance(frame, Outputs):
        return encode_outputs(frame.outputs)
    return _ENCODER.encode((_TAGS[type(frame)], frame))


def encode_outputs(outputs: Sequence[Output]) -> bytes:
    """Return `encode(Outputs(tuple(outputs)))` without making the copy. Called once a step."""
    return _ENCODER.encode(("outputs", outputs))


def decode(data: bytes) -> Frame:
    """Return the message in `data`, equal to the one that was encoded.

    Raises:
        WireError: the bytes are truncated or not a frame, the tag is unknown, or the value does not fit its type.
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


class Outgoing:
    """Stamps messages that leave with the engine's epoch and a number, from 0.

    Args:
        epoch: number of the engine that sends or receives them.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.count = 0

    def stamp(self) -> bytes:
        """Return the stamp of the next message."""
        stamp = _STAMP.pack(self.epoch, self.count)
        self.count += 1
        return stamp


class Incoming:
    """Checks the stamps of messages that arrive.

    Args:
        epoch: the engine's; None takes that of the first message.
    """

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.count = 0

    def accept(self, stamp: bytes) -> bool:
        """Return whether the message with this stamp is valid: one of another epoch is not.

        Raises:
            WireError: messages before it were lost, or these bytes are no stamp.
        """
        if len(stamp) != _STAMP.size:
            raise WireError(f"a stamp must have {_STAMP.size} bytes, got {len(stamp)}")
        epoch, number = _STAMP.unpack(stamp)
        if self.epoch is None:
            self.epoch = epoch
        if epoch != self.epoch:
            return False
        if number != self.count:
            raise WireError(f"received message {number} instead of message {self.count}: some were lost")
        self.count += 1
        return True
