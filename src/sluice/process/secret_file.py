"""Secrets in files that only their owner can read."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from sluice.config import ConfigError

MODE = 0o600
TOKEN = "the token of --dist-token-file"
SIZE = 32
"""Bytes of a secret."""


def read_or_make_secret(path: Path, name: str) -> bytes:
    """Return the secret in a file, which is made if there is none.

    Args:
        name: what the file is to users: "the secret of --cache-isolation".

    Raises:
        ConfigError: the file cannot be read or made, is not a regular file, belongs to another user, is open to other
            users, or does not hold a secret.
    """
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        _make(path)
        return _read(path)
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        problem = (
            "is a symbolic link; put the file itself there" if is_link else f"cannot be read or made: {error.strerror}"
        )
        raise ConfigError(f"{name}, {path}, {problem}") from error
    except _Unusable as error:
        raise ConfigError(f"{name}, {path}, {error}") from error


class _Unusable(Exception):
    """Why a file is no secret."""


def _read(path: Path) -> bytes:
    """Return a file's contents; of a FIFO or a link, never what is at its other end."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _Unusable("is not a regular file")
        if status.st_uid != os.geteuid():
            raise _Unusable(f"belongs to user {status.st_uid}, not to user {os.geteuid()} who starts the server")
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~MODE:
            raise _Unusable(f"has mode {mode:04o}; run: chmod {MODE:o} {path}")
        secret = os.read(file, SIZE + 1)
    finally:
        os.close(file)
    if len(secret) != SIZE:
        raise _Unusable(
            f"does not hold a secret, which has {SIZE} bytes; without the file, the server makes another one"
        )
    return secret


def _make(path: Path) -> None:
    """Put a new secret in place, whole or not at all, and leave one that another process has put there meanwhile."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        try:
            os.fchmod(file, MODE)  # the umask may have taken bits away
            os.write(file, secrets.token_bytes(SIZE))
            os.fsync(file)
        finally:
            os.close(file)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
