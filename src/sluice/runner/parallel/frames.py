"""What ranks tell each other beside tensors, as bytes: plans and masks from the leader, results and errors back.

Frames are MessagePack, and decoding builds only what their types allow.
"""

from __future__ import annotations

import msgspec

from sluice.parallel.group import GroupError
from sluice.types import AdapterInfo, BatchPlan, BatchResult


class Launch(msgspec.Struct, frozen=True, array_like=True, tag="launch"):
    """Leader to all: start a step, whose plan was checked."""

    plan: BatchPlan


class Masks(msgspec.Struct, frozen=True, array_like=True, tag="masks"):
    """Leader to all, after the `Launch` of a step in which rows with a grammar sample: the tokens they may sample."""

    bits: bytes
    """[C, words] int32 in the machine's order of bytes, for the rows in their order; all 0 where a mask is late."""


class TakeAdapter(msgspec.Struct, frozen=True, array_like=True, tag="take_adapter"):
    """Leader to all: load an adapter beside the model, as it has done itself. Later steps may have rows with it."""

    info: AdapterInfo
    """Its files are read again, and must have the same content."""


class DropAdapter(msgspec.Struct, frozen=True, array_like=True, tag="drop_adapter"):
    """Leader to all: free the place of an adapter, which no later step has rows with."""

    digest: str


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """Leader to all: no step follows."""


class RankAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """A rank to the leader: the result of a step, as far as it is the rank's to know."""

    result: BatchResult


class Problem(msgspec.Struct, frozen=True, array_like=True, tag="problem"):
    """A rank to the leader: it failed, and does nothing more."""

    message: str
    is_consequence: bool = False
    """Another rank did not take part."""


Command = Launch | Masks | TakeAdapter | DropAdapter | Close
Reply = RankAnswer | Problem

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(frame: Command | Reply) -> bytes:
    return _ENCODER.encode(frame)


def decode_command(data: bytes) -> Command:
    """Return what the leader says.

    Raises:
        GroupError: it is no command.
    """
    try:
        return _COMMANDS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GroupError(f"the leader sent no command ({len(data)} bytes): {error}") from error


def decode_reply(data: bytes) -> Reply:
    """Return what another rank answers.

    Raises:
        GroupError: it is no reply.
    """
    try:
        return _REPLIES.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GroupError(f"a rank sent no reply ({len(data)} bytes): {error}") from error
