"""Whole reads and writes at an offset: of several buffers at once, however short the system's own calls fall."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from sluice.tiers.errors import PageLost

MOST_BUFFERS = 512
"""Given to one call: Linux takes 1024."""
CLOSED = -1
"""In the place of a descriptor: no file has this number."""


class Blocks(Protocol):
    """A file, as a page file uses it."""

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill the buffers.

        Raises:
            PageLost: the file ends before that.
            OSError: the system's own reason.
        """
        ...

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        """Write all of the buffers.

        Raises:
            OSError: the disk is full, or the system's own reason.
        """
        ...

    def expect(self, offset: int, length: int) -> None:
        """Say what will be read soon."""
        ...

    def close(self) -> None: ...


class FileBlocks:
    """An open file descriptor, owned from now on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """See `Blocks.read`."""
        left = [memoryview(buffer).cast("B") for buffer in buffers]
        while left:
            count = os.preadv(self._descriptor, left[:MOST_BUFFERS], offset)
            if count == 0:
                raise PageLost(f"the file ends at byte {os.fstat(self._descriptor).st_size}, before byte {offset + 1}")
            offset += count
            left = _rest(left, count)

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        """See `Blocks.write`."""
        left = [memoryview(buffer).cast("B") for buffer in buffers]
        while left:
            count = os.pwritev(self._descriptor, left[:MOST_BUFFERS], offset)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += count
            left = _rest(left, count)

    def expect(self, offset: int, length: int) -> None:
        """See `Blocks.expect`. Some file systems take no advice."""
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Twice is once. What comes later fails, and does not reach whatever file has the number then."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        if descriptor != CLOSED:
            with suppress(OSError):  # or a process that was forked meanwhile would keep the lock
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _rest(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of buffers of which `count` bytes are done."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []
