"""Whole reads and writes of several buffers at an offset of a file, although the system's calls may do only a part."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

from sluice.storage.checksums import Checksum, Differs, PageRun, ended

MOST_BUFFERS = 512
"""Buffers given to one call: Linux takes 1024."""
CLOSED = -1
"""Number of a closed descriptor: no file has it."""


class FileBlocks:
    """The file of an open descriptor, which this object owns, as a page file uses it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.descriptor = ctypes.c_int32(descriptor)
        """Descriptor for the compiled library, which looks at it before each read: `CLOSED` once the file is given
        up."""
        self._is_unlocked = False

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill the buffers.

        Raises:
            PageLost: the file ends before that.
            OSError: the system's own reason.
        """
        left = [memoryview(buffer).cast("B") for buffer in buffers]
        while left:
            self._check_locked()
            count = os.preadv(self._descriptor, left[:MOST_BUFFERS], offset)
            if count == 0:
                raise ended(self._descriptor, offset + 1)
            offset += count
            left = _rest(left, count)

    def read_run(self, checksum: Checksum, run: PageRun) -> Differs | None:
        """Fill the memory of a run, and compare it: see `Checksum.read`."""
        self._check_locked()
        return checksum.read(self, run)

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        """Write all of the buffers.

        Raises:
            OSError: the disk is full, or the system's own reason.
        """
        left = [memoryview(buffer).cast("B") for buffer in buffers]
        while left:
            self._check_locked()
            count = os.pwritev(self._descriptor, left[:MOST_BUFFERS], offset)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += count
            left = _rest(left, count)

    def expect(self, offset: int, length: int) -> None:
        """Announce a read, so that the system may fetch the bytes meanwhile; some file systems take no advice."""
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def unlock(self) -> None:
        """Let another engine open the file, although a read or write of this one may not have ended. Later ones fail
        with OSError. The descriptor is kept: a call under way in another thread may be about to use it."""
        self._is_unlocked = True
        self.descriptor.value = CLOSED
        with suppress(OSError):  # closed meanwhile
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _check_locked(self) -> None:
        if self._is_unlocked:
            raise OSError(errno.ENOLCK, "the file was given to another engine")

    def close(self) -> None:
        """Close the file. Later calls fail, even if another file has the descriptor's number by then."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        self.descriptor.value = CLOSED
        if descriptor != CLOSED:
            with suppress(OSError):  # or a process that was forked meanwhile would keep the lock
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _rest(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of buffers of which `count` bytes are done."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []
