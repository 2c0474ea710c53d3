"""Frames on a stream of bytes between two processes: each is a length of eight bytes, and so many bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

LENGTH = struct.Struct("<Q")


class TooLong(OSError):
    """A frame is longer than it may be."""


class FrameReader:
    """Cuts the bytes of a stream into frames.

    Args:
        longest: bytes that a frame may have; it may be changed between two frames.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._received = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._received += data

    def take(self) -> bytes | None:
        """Remove and return the first frame, or return None if not all of it has arrived.

        Raises:
            TooLong: it is longer than it may be, as the first bytes of another protocol would be.
        """
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        if length > self.longest:
            raise TooLong(f"a frame of {length} bytes, {self.longest} are accepted")
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[LENGTH.size : end])
        del self._received[:end]
        return frame


def send_frame(to: socket.socket, frame: bytes) -> None:
    """Send a frame, and wait until the system has taken all of it.

    Raises:
        OSError: the other end has ended, or the socket's time is over.
    """
    to.sendall(LENGTH.pack(len(frame)))
    to.sendall(frame)


def read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """Return the next frame of a file, or None if the file ends before the end of one.

    Args:
        read: returns as many bytes as it is asked for, and fewer only at the end of the file.
    """
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    frame = read(length)
    return frame if len(frame) == length else None


def write_frame(write: Callable[[bytes], object], frame: bytes) -> None:
    """Write a frame to a file."""
    write(LENGTH.pack(len(frame)))
    write(frame)
