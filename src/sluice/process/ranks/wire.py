"""What ranks tell each other before the first step, as bytes."""

from __future__ import annotations

import msgspec

from sluice.assembly.tiers import RankPages
from sluice.config import EngineConfig
from sluice.parallel.group import GroupError


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A rank to the leader, first."""

    rank: int
    facts: dict[str, str]
    """What must be the same everywhere (`assembly.rank_facts`)."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Leader to each rank: join the groups and load the model."""

    config: EngineConfig
    """The leader's, which holds for all but the paths of a machine."""
    store_host: str
    store_port: int


class Pages(msgspec.Struct, frozen=True, tag="pages"):
    """A rank to the leader: for how many pages it has room. Leader to each rank: how many each must have."""

    pages: RankPages


class RankLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A rank to the leader: it awaits steps."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A rank to the leader: it cannot start, for a reason in one line. Leader to a rank: it is refused."""

    message: str
    is_shortage: bool = False


RankFrame = Hello | Begin | Pages | RankLoaded | RankFailed
_ENCODER = msgspec.msgpack.Encoder()
_FRAMES = msgspec.msgpack.Decoder(RankFrame)


def encode_frame(frame: RankFrame) -> bytes:
    return _ENCODER.encode(frame)


def decode_frame(data: bytes) -> RankFrame:
    """Return the frame in some bytes.

    Raises:
        GroupError: there is none.
    """
    try:
        frame: RankFrame = _FRAMES.decode(data)
        return frame
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GroupError(f"a rank sent no frame ({len(data)} bytes): {error}") from error
