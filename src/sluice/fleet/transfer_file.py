"""The page files through which prefill replicas hand prompts over: one for each, in a folder that all replicas see.

A file outlives its replica, which may be killed, and the next one takes it, with the prefixes that are in it. So there
are never more files than there were prefill replicas at once.

The folder may be shared with other users, as /dev/shm is: their files are left alone, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from dataclasses import replace
from itertools import count
from pathlib import Path

from sluice.config import EngineConfig

MODE = 0o600
FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class TransferFile:
    """The path of a page file that belongs to this process until it ends or closes it.

    Args:
        folder: there is one.

    Raises:
        OSError: nothing can be written there, or the page file of a free number is a link or another user's.
    """

    def __init__(self, folder: Path) -> None:
        for number in count():
            self.path = folder.absolute() / f"sluice-prefill-{number}.kv"
            descriptor = _locked(self.path.with_suffix(".lock"))
            if descriptor is not None:
                self._descriptor = descriptor
                break
        try:
            _claim(self.path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Remove the file. The engine that used it has ended."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _locked(path: Path) -> int | None:
    """Return the descriptor of a lock that this process holds now; None: it is another process's or user's.

    Raises:
        OSError: nothing can be written there.
    """
    try:
        descriptor = os.open(path, FLAGS, MODE)
    except OSError as error:
        # A folder in which nothing can be made refuses as well, and would do so for every number.
        if error.errno in (errno.EACCES, errno.ELOOP) and os.path.lexists(path):
            return None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _claim(path: Path) -> None:
    """Make a page file, if there is none, which nobody else can then replace in a folder such as /dev/shm.

    Raises:
        OSError: it is a link or another user's: the KV of prompts would go wherever that user wants it.
    """
    try:
        descriptor = os.open(path, FLAGS, MODE)
    except OSError as error:
        if os.path.lexists(path):
            raise _foreign(path, error.errno) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _foreign(path, errno.EPERM)
    finally:
        os.close(descriptor)


def _foreign(path: Path, number: int | None) -> OSError:
    return OSError(
        number,
        f"--transfer-folder {path.parent} must hold page files of this user alone: remove {path.name}, which is a link"
        " or another user's, or name another folder",
    )


def prefill_engine(engine: EngineConfig, path: Path) -> EngineConfig:
    """Return the options of an engine that stores what it computes."""
    return replace(engine, cache=replace(engine.cache, kv_disk=str(path)))


def decode_engine(engine: EngineConfig) -> EngineConfig:
    """Return the options of an engine that takes the pages of others."""
    return replace(engine, cache=replace(engine.cache, kv_disk_bytes=None))
