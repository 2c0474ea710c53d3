"""Stamps on messages: which engine they belong to, and the how-manieth they are, so that none is lost unnoticed."""

from __future__ import annotations

import struct

from sluice.process.wire import WireError

_STAMP = struct.Struct("<QQ")


class Outgoing:
    """Numbers messages that leave, from 0.

    Args:
        epoch: number of the engine that they go to or come from.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.count = 0

    def stamp(self) -> bytes:
        """For the next message."""
        stamp = _STAMP.pack(self.epoch, self.count)
        self.count += 1
        return stamp


class Incoming:
    """Checks messages that arrive.

    Args:
        epoch: of the messages that count; None is that of the first.
    """

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.count = 0

    def accept(self, stamp: bytes) -> bool:
        """Whether the message with this stamp counts: one of another engine does not.

        Raises:
            WireError: messages before it are missing, or it is no stamp.
        """
        if len(stamp) != _STAMP.size:
            raise WireError(f"a message without a stamp: {len(stamp)} bytes")
        epoch, number = _STAMP.unpack(stamp)
        if self.epoch is None:
            self.epoch = epoch
        if epoch != self.epoch:
            return False
        if number != self.count:
            raise WireError(f"message {number} came in the place of message {self.count}: some were lost")
        self.count += 1
        return True
