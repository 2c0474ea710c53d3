"""The private folder that a server shares with one engine: it holds both sockets and the heartbeat.

A server locks the folders it uses. The lock ends with its process, however that ends, so another server can recognise
the folders that were left behind, and remove them.
"""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from sluice.process.heartbeat import SIZE, SharedHeartbeat

MAX_SOCKET_PATH = 104
"""Bytes of a Unix socket's path (`sun_path`) without the final zero on macOS; Linux allows three more."""
PREFIX = "sluice-engine-"
PRIVATE = 0o700


class SocketFolder:
    """A folder that only this user can enter.

    Args:
        path: an existing folder; `fresh` makes one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heartbeat = path / "heartbeat"
        self.requests = f"ipc://{path}/requests"
        """Endpoint of messages to the engine."""
        self.outputs = f"ipc://{path}/outputs"
        """Endpoint of messages from the engine."""
        self.ranks = path / "ranks"
        """Socket to which the engine's other ranks connect."""
        self._lock: BinaryIO | None = None

    @classmethod
    def fresh(cls) -> Self:
        """Make and lock a folder with a new heartbeat, in the first of the `temporary_folders` that serves.

        Raises:
            OSError: none of them serves; the message has the reasons.
        """
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if 0 <= largest < SIZE:
            raise OSError(
                f"a file may have at most {largest} bytes (RLIMIT_FSIZE), and the engine's heartbeat has {SIZE}; raise"
                " the limit (ulimit -f, or systemd's LimitFSIZE)"
            )
        problems = []
        for parent in temporary_folders():
            try:
                return cls._inside(parent)
            except OSError as error:
                problems.append(f"{parent}: {error.strerror or error}")
        raise OSError(f"no temporary folder serves for sockets ({'; '.join(problems)}); set TMPDIR to one that does")

    @classmethod
    def _inside(cls, parent: str) -> Self:
        folder = cls(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)))
        try:
            if len(os.fsencode(folder.path / "requests")) > MAX_SOCKET_PATH:
                raise OSError("its path is too long for a socket")
            if not _is_private(folder.path):
                raise OSError("other users can enter folders that are made there")
            folder._lock = _locked(folder.path / "lock", os.O_CREAT | os.O_EXCL)
            SharedHeartbeat.create(folder.heartbeat)
        except OSError:
            folder.remove()
            raise
        return folder

    def remove(self) -> None:
        """Remove the folder with the files that belong there, and release its lock. This opens no file."""
        for name in ("requests", "outputs", "ranks", "heartbeat", "lock"):
            with suppress(OSError):
                (self.path / name).unlink()
        with suppress(OSError):
            self.path.rmdir()
        if self._lock is not None:
            self._lock.close()


def temporary_folders() -> list[str]:
    """Return folders for temporary files, the preferred one first. Some of them may not exist."""
    others = ["/tmp", "/var/tmp", f"/run/user/{os.getuid()}", "/dev/shm"]  # noqa: S108 - a fresh folder is made there
    try:
        return list(dict.fromkeys([tempfile.gettempdir(), *others]))
    except FileNotFoundError:  # it tried to write to some and could not
        return others


def remove_abandoned() -> None:
    """Remove the folders of this user's servers that have ended without removing them."""
    for parent in temporary_folders():
        for path in Path(parent).glob(f"{PREFIX}*"):
            with suppress(OSError):  # it is in use, or another server removes it
                if _is_private(path):
                    with _locked(path / "lock"):
                        SocketFolder(path).remove()


def _is_private(path: Path) -> bool:
    """Return whether this is a folder, and no symbolic link, that belongs to this user alone."""
    status = path.lstat()
    mode = status.st_mode
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == PRIVATE and status.st_uid == os.getuid()


def _locked(path: Path, flags: int = 0) -> BinaryIO:
    """Open and lock a file.

    Raises:
        OSError: it cannot be opened, or another process holds its lock.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
