"""A page file taken over from an engine before: as that one left it, or not at all."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from page_files import GEOMETRY, SIZE, SLOTS, keys, opened, page
from sluice.storage import opening
from sluice.storage import page_file_format as page_format
from sluice.storage.opening import check_path, open_page_file
from sluice.storage.page_file_format import (
    BLOCK,
    Checksums,
    FileLayout,
    IndexEntry,
    PageFileError,
    decode_entry,
    decode_header,
    encode_entry,
    encode_header,
)

LAYOUT = FileLayout(GEOMETRY, SLOTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A page file with four pages, as an engine left it."""
    path = tmp_path / "pages"
    file = opened(path).file
    for number, key in enumerate(keys([*range(16)])):
        file.write(number, key, page(number))
    file.close()
    return path


def taken_over(path: Path, geometry: page_format.PageGeometry = GEOMETRY, size: int = SIZE) -> int:
    """How many pages an engine that follows another one finds."""
    check_path(path, must_exist=True)
    found = open_page_file(path, size, geometry, must_exist=True)
    found.file.close()
    return len(found.pages)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link_to(target: str, content: bytes | None = None) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)
        if content is not None:
            (path.parent / target).write_bytes(content)

    return link


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_file_of(number: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.unlink()
        opened(path, replace(GEOMETRY, model=f"model {number}")).file.close()

    return make


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, "cannot be opened: No such file"),
        (lambda path: os.truncate(path, 0), "is not a page file"),
        (lambda path: os.truncate(path, 100), "ends in its header"),
        (lambda path: os.truncate(path, LAYOUT.extents_at), f"was cut off at byte {LAYOUT.extents_at}"),
        (lambda path: path.write_bytes(b"SluiceKV"), "ends in its header"),
        (lambda path: path.write_bytes(b"a thesis"), "is not a page file"),
        (lambda path: overwrite(path, 30, b"?"), "has a damaged header"),
        (lambda path: overwrite(path, BLOCK, random.Random(0).randbytes(LAYOUT.index_bytes)), "damaged index: 6 of 6"),
        (as_file_of(2), "holds the KV of other weights"),
        (as_fifo, "must be a file, it is something else"),
        (as_folder, "Is a directory"),
        (as_link_to("missing"), "No such file"),
        (as_link_to("pages"), "Too many levels of symbolic links"),
        (as_link_to("other", b"a thesis"), "is not a page file"),
    ],
)
def test_what_is_not_as_it_was_left_is_not_taken_over_and_not_touched(
    path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    """An engine that follows another one makes a file on whatever disk is there now, or empties what it finds."""
    damage(path)
    before = content(path)
    with pytest.raises(PageFileError, match=f"--kv-disk {path} .*{problem}"):
        taken_over(path)
    assert content(path) == before


def content(path: Path) -> dict[str, bytes | None]:
    """What lies in the folder of a file."""
    return {each.name: each.read_bytes() if each.is_file() else None for each in path.parent.iterdir()}


def test_a_file_as_it_was_left_is_taken_over(path: Path) -> None:
    """A restart that loses the cache; a link to another disk, as set up by hand, that only a first engine follows."""
    assert taken_over(path) == 4
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)
    assert taken_over(path) == 4


def test_another_owner_or_a_disk_that_cannot_be_written_is_not_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in a file that another user can read; an error of the system without the name of the option."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PageFileError, match="belongs to another user"):
            taken_over(path)

    def refuse(path: Path, flags: int, mode: int = 0) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(PageFileError, match=f"--kv-disk {path} cannot be opened: Read-only file system"):
            taken_over(path)
    assert taken_over(path) == 4


def test_a_few_damaged_entries_cost_their_pages_alone(path: Path) -> None:
    """One torn entry, as a killed engine leaves it, that costs all of the cache, or is reported at every start."""
    overwrite(path, LAYOUT.entry_at(3) + 200, b"torn")
    overwrite(path, LAYOUT.entry_at(5), b"torn")
    found = open_page_file(path, SIZE, GEOMETRY, must_exist=True)
    assert (len(found.pages), found.num_damaged) == (3, 2)
    found.file.close()
    again = open_page_file(path, SIZE, GEOMETRY, must_exist=True)
    assert (len(again.pages), again.num_damaged) == (3, 0)
    again.file.close()


def test_a_first_engine_makes_and_empties_what_a_later_one_refuses(path: Path) -> None:
    """A cache that has to be removed by hand after every change of the model."""
    overwrite(path, 30, b"?")
    found = opened(path)
    assert (found.pages, found.discarded) == ((), "has a damaged header")
    found.file.close()
    path.unlink()
    check_path(path)
    assert not path.exists()
    opened(path).file.close()
    assert taken_over(path) == 0


def test_a_file_for_which_there_is_no_room_is_not_left_empty(path: Path) -> None:
    """A path that was free is free again; what somebody else has put there stays."""
    path.unlink(missing_ok=True)
    with pytest.raises(PageFileError, match="cannot be made"):
        open_page_file(path, 1 << 60, GEOMETRY)
    assert not path.exists()
    path.touch()
    with pytest.raises(PageFileError, match="cannot be made"):
        open_page_file(path, 1 << 60, GEOMETRY)
    assert path.exists()
    check_path(path)
    assert path.exists()


def test_a_file_that_is_removed_while_one_waits_for_it_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines that start at once: one gives up, and the other would write to a file that has no name."""
    path.write_bytes(b"")
    lock = opening._lock

    def removed_first(descriptor: int, path: Path) -> bool:
        monkeypatch.setattr(opening, "_lock", lock)
        path.unlink()
        return lock(descriptor, path)

    monkeypatch.setattr(opening, "_lock", removed_first)
    opened(path).file.close()
    assert path.stat().st_size
    assert taken_over(path) == 0


def test_a_file_that_claims_to_be_one_is_refused_in_words(path: Path) -> None:
    """A header or an entry with a right checksum and wrong contents: a traceback, and no engine at all."""
    for change in ({"num_layers": "3"}, {"num_layers": -3}, {"dtype": None}):
        geometry = asdict(GEOMETRY) | change
        header = encode_header(FileLayout(page_format.PageGeometry(**geometry), SLOTS))
        with pytest.raises(ValueError, match="has a damaged header"):
            decode_header(header)
    entry = IndexEntry(keys([*range(4)])[0], Checksums((1, 2, 3)), 7)
    assert decode_entry(encode_entry(entry, GEOMETRY), GEOMETRY) == entry
    longer = replace(GEOMETRY, page_size=5)
    five = IndexEntry(keys([*range(5)], page_size=5)[0], Checksums((1, 2, 3)), 7)
    data = encode_entry(five, longer)
    assert decode_entry(data, GEOMETRY) is None
    assert decode_entry(data, replace(longer, num_layers=2)) is None
