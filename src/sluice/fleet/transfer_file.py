"""The page files through which prefill replicas hand prompts over: one for each, in a folder that all replicas see.

A file outlives its replica, which may be killed, and the next one takes it, with the prefixes that lie in it. So there
are never more files than there were prefill replicas at once.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

from sluice.config import EngineConfig

MODE = 0o600


class TransferFile:
    """The path of a page file that belongs to this process until it ends or closes it.

    Args:
        folder: there is one.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, folder: Path) -> None:
        for number in count():
            self.path = folder.absolute() / f"sluice-prefill-{number}.kv"
            descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                self._descriptor = descriptor
                return

    def close(self) -> None:
        """Remove the file. The engine that used it has ended."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def prefill_engine(engine: EngineConfig, path: Path) -> EngineConfig:
    """Return the options of an engine that stores what it computes."""
    return replace(engine, cache=replace(engine.cache, kv_disk=str(path)))


def decode_engine(engine: EngineConfig) -> EngineConfig:
    """Return the options of an engine that takes the pages of others."""
    return replace(engine, cache=replace(engine.cache, kv_disk_bytes=None))
