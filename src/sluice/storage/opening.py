"""Opens page files: for one engine alone, never a file that is something else, and never for longer than a lock takes.

The first engine of a server makes the file if there is none, and empties one that it cannot use. An engine that follows
another one takes the file over as that one left it (`must_exist`): a file that is missing or changed by then may be the
sign of a disk that is gone, and what is at the path now may be another program's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.storage.blocks import FileBlocks
from sluice.storage.page_file import EMPTY_HEAD, Index, PageFile, read_index, restored
from sluice.storage.page_file_format import (
    BLOCK,
    UNFINISHED,
    FileLayout,
    PageFileError,
    PageFileInUse,
    PageGeometry,
    PageLost,
    decode_header,
    encode_header,
    is_page_file,
)
from sluice.types import StoredPage

MODE = 0o600
RETRY_SECONDS = 0.02
"""Time between two attempts to lock a file that is in use."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A page file and its contents."""

    file: PageFile
    pages: tuple[StoredPage, ...]
    """Stored pages, parents before children."""
    discarded: str | None
    """Why the former contents are not used, in words that follow "it"; None if they are, or the file is new."""
    num_damaged: int = 0
    """Pages that are lost because their entries in the index are damaged."""


def check_path(path: Path, patience: float = 0.0, *, must_exist: bool = False) -> None:
    """Check that a page file can be opened or made here, and leave everything as it is.

    Args:
        patience: seconds to wait for an engine that uses the file: it may be closing.
        must_exist: whether only a whole page file will do.

    Raises:
        PageFileInUse: the other engine still uses it.
        PageFileError: there can be no such file at this path, or there is none although it must exist.
    """
    is_new = not must_exist and not path.exists()
    descriptor = _locked(path, patience, must_exist=must_exist)
    try:
        with _refusing(path):
            if must_exist:
                _check_whole(descriptor, path)
    finally:
        if is_new:
            _remove_empty(descriptor, path)
        os.close(descriptor)


def open_page_file(
    path: Path, size: int, geometry: PageGeometry, patience: float = 0.0, *, must_exist: bool = False
) -> Opened:
    """Open a page file for this engine alone, or make one.

    Args:
        size: most bytes the file may take.
        patience: as for `check_path`.
        must_exist: whether only a whole page file of the same layout will do. None is made or emptied then.

    Raises:
        PageFileInUse: another engine uses it.
        PageFileError: there can be no such file at this path, or there is none although it must exist.
    """
    layout = FileLayout.within(geometry, size)
    was_missing = not path.exists()
    descriptor = _locked(path, patience, must_exist=must_exist)
    try:
        with _refusing(path):
            discarded = _why_not(descriptor, layout)
            if discarded is None:
                return _taken_over(descriptor, path, layout, must_exist=must_exist)
            if must_exist:
                raise PageFileError(f"--kv-disk {path} {discarded}")
            is_new = os.fstat(descriptor).st_size == 0
            _make(descriptor, path, layout)
            return Opened(PageFile(FileBlocks(descriptor), layout, {}), (), None if is_new else discarded)
    except BaseException:
        if was_missing:
            _remove_empty(descriptor, path)
        os.close(descriptor)
        raise


def _remove_empty(descriptor: int, path: Path) -> None:
    """Remove a locked file that was made in vain. One that has contents by now stays."""
    with suppress(OSError):
        if os.fstat(descriptor).st_size == 0 and _is_at(path, descriptor):
            path.unlink()


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether a path still leads to an open file: another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def open_to_look(path: Path) -> int:
    """Return a descriptor to read with, even while an engine uses the file.

    Raises:
        PageFileError: it cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PageFileError(f"{path} cannot be opened: {error.strerror}") from error


def _locked(path: Path, patience: float, *, must_exist: bool) -> int:
    """Open a file and lock it. Neither waits for a FIFO or a device, which are refused.

    Raises:
        PageFileInUse: another engine uses it.
        PageFileError: it cannot be opened, or is no page file of this user.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (0 if must_exist else os.O_CREAT)
    try:
        descriptor = os.open(path, flags, MODE)
    except OSError as error:
        raise PageFileError(f"--kv-disk {path} cannot be opened: {error.strerror}") from error
    try:
        with _refusing(path):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PageFileError(f"--kv-disk {path} must be a file, it is something else")
            if status.st_uid != os.geteuid():
                raise PageFileError(
                    f"--kv-disk {path} belongs to another user (uid {status.st_uid}), who could read it"
                )
            _check_ours(descriptor, path, status.st_size)
            _take(descriptor, path, patience)
            os.fchmod(descriptor, MODE)
    except BaseException:
        os.close(descriptor)
        raise
    if must_exist or _is_at(path, descriptor):
        return descriptor
    os.close(descriptor)  # who held the lock has removed the file
    return _locked(path, patience, must_exist=must_exist)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise PageFileError, with the file's name, in place of what the system raises."""
    try:
        yield
    except (OSError, PageLost) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PageFileError(f"--kv-disk {path} cannot be used: {reason}") from error


def _check_ours(descriptor: int, path: Path, size: int) -> None:
    if size and not is_page_file(os.pread(descriptor, BLOCK, 0)):
        raise PageFileError(
            f"--kv-disk {path} is not a page file, and would be overwritten; name another path, or remove it"
        )


def _take(descriptor: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _lock(descriptor, path):
        if time.monotonic() >= deadline:
            waited = f", and was so for {patience:g} s" if patience else ""
            raise PageFileInUse(f"--kv-disk {path} is in use by another engine{waited}")
        time.sleep(RETRY_SECONDS)


def _lock(descriptor: int, path: Path) -> bool:
    """Try to lock a file. Return whether this process holds the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise PageFileError(f"--kv-disk {path} cannot be locked: {error.strerror}") from error
        return False
    return True


def _check_whole(descriptor: int, path: Path) -> None:
    """Raise PageFileError unless a file has a whole header and the size that it names."""
    try:
        layout = _layout_of(descriptor)
    except ValueError as error:
        raise PageFileError(f"--kv-disk {path} {error}") from error
    if (cut_off := _why_cut_off(descriptor, layout)) is not None:
        raise PageFileError(f"--kv-disk {path} {cut_off}")


def _why_not(descriptor: int, layout: FileLayout) -> str | None:
    """Return why a file's pages cannot be used; None if they can."""
    try:
        found = _layout_of(descriptor)
    except ValueError as error:
        return str(error)
    difference = layout.geometry.difference(found.geometry)
    if difference is not None:
        return f"holds {difference}"
    if found.num_pages != layout.num_pages:
        return f"has room for {found.num_pages} pages, not {layout.num_pages}"
    return _why_cut_off(descriptor, layout)


def _layout_of(descriptor: int) -> FileLayout:
    return decode_header(os.pread(descriptor, BLOCK, 0))


def _why_cut_off(descriptor: int, layout: FileLayout) -> str | None:
    size = os.fstat(descriptor).st_size
    return f"was cut off at byte {size} of {layout.file_bytes}" if size < layout.file_bytes else None


def _taken_over(descriptor: int, path: Path, layout: FileLayout, *, must_exist: bool) -> Opened:
    """Return a file with the contents that an engine before has left. Damaged entries are emptied."""
    blocks = FileBlocks(descriptor)
    index = read_index(blocks, layout)
    if must_exist:
        _check_index(path, index)
    for page in index.damaged:
        blocks.write([EMPTY_HEAD], layout.entry_at(page))
    file = PageFile(blocks, layout, index.entries)
    return Opened(file, tuple(restored(index.entries)), None, len(index.damaged))


def _check_index(path: Path, index: Index) -> None:
    """Raise PageFileError if most of an index is damaged: it was overwritten, and may be so again."""
    damaged, whole = len(index.damaged), len(index.entries)
    if damaged > max(1, whole):
        raise PageFileError(f"--kv-disk {path} has a damaged index: {damaged} of {damaged + whole} entries")


def _make(descriptor: int, path: Path, layout: FileLayout) -> None:
    """Make an empty page file.

    Raises:
        PageFileError: there is no room for it.
    """
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, UNFINISHED, 0)
        os.posix_fallocate(descriptor, 0, layout.file_bytes)
        os.pwrite(descriptor, encode_header(layout), 0)
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise PageFileError(
            f"--kv-disk {path} cannot be made {layout.file_bytes} bytes large (--kv-disk-bytes): {error.strerror}"
        ) from error
