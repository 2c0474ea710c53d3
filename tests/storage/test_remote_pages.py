"""Pages in the files of other engines, which may be made anew while they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from page_files import GEOMETRY, SLOTS, blank, keys, opened, page
from sluice.storage.page_file_format import FileLayout, PageLost
from sluice.storage.remote_pages import RemotePages
from sluice.types import StoredPage

KEY = keys([1] * 4)[0]


def stored(path: Path, slot: int, num_slots: int = SLOTS) -> StoredPage:
    """Make a file of this many pages that holds one."""
    file = opened(path, size=FileLayout(GEOMETRY, num_slots).file_bytes).file
    checksum = file.write(slot, KEY, page(slot))
    file.close()
    return StoredPage(slot, KEY, checksum)


def cut(path: Path) -> None:
    os.truncate(path, 4096)


@pytest.mark.parametrize(
    ("damage", "slot", "why"),
    [
        (lambda path: None, SLOTS, r"has \d pages, and no page"),
        (cut, 1, "the file ends at byte"),
        (lambda path: None, 1, "is not what was stored there"),
    ],
    ids=["fewer pages before", "cut off before", "other content before"],
)
def test_a_file_that_was_made_anew_is_opened_anew(
    tmp_path: Path, damage: Callable[[Path], None], slot: int, why: str
) -> None:
    """Every page of an engine that was restarted with a larger file would be lost, for as long as this one runs."""
    path, parts = tmp_path / "a.kv", blank()
    remote = RemotePages(GEOMETRY, 4, tmp_path)
    remote.place(0, path, stored(path, 0))
    remote.read(0, parts)
    assert b"".join(parts) == b"".join(page(0))
    damage(path)
    path.unlink()
    remote.place(1, path, stored(path, slot, 2 * SLOTS))
    with pytest.raises(PageLost, match=why):
        remote.read(1, parts)
    remote.read(1, parts)
    assert b"".join(parts) == b"".join(page(slot))
    remote.close()
