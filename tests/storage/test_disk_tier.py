"""The disk's thread outlives its disk and its listeners, and lets go of its file when it is closed."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from page_files import GEOMETRY, PATIENCE, SIZE, HungBlocks, blank, keys, opened, page
from sluice.engine.messages import Copied
from sluice.process.socket_folder import SocketFolder
from sluice.process.zmq_link import ZmqLink
from sluice.storage import disk_tier
from sluice.storage.blocks import FileBlocks
from sluice.storage.disk_tier import DiskRead, DiskTier, DiskWrite, Erase, Report
from sluice.storage.page_file import PageFile, read_index
from sluice.storage.page_file_format import FileLayout, PageFileInUse
from sluice.types import CopyDone


@dataclass
class Bytes:
    """Both ends of a copy: a page in memory."""

    views: Sequence[memoryview] = field(default_factory=blank)
    frees: int = 0

    def parts(self) -> Sequence[memoryview]:
        return self.views

    def finish(self) -> None:
        pass

    def free(self) -> None:
        self.frees += 1


def store(slot: int) -> DiskWrite:
    return DiskWrite(slot, slot, keys([slot] * 4)[0], Bytes(page(slot)))


def hung(path: Path, reports: Report) -> tuple[DiskTier, HungBlocks]:
    """A tier over a file whose disk hangs, with what is in the file."""
    opened(path).file.close()
    layout = FileLayout.within(GEOMETRY, SIZE)
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    inner = FileBlocks(descriptor)
    blocks = HungBlocks(inner)
    return DiskTier(PageFile(blocks, layout, read_index(inner, layout).entries), reports), blocks


def found(path: Path) -> list[int]:
    """The slots that an engine would find when it opens the file."""
    file = opened(path)
    file.file.close()
    return sorted(stored.page for stored in file.pages)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "CLOSE_SECONDS", 0.0)


@pytest.mark.usefixtures("_hasty")
def test_stores_that_a_slow_disk_keeps_waiting_are_dropped_at_the_end(path: Path) -> None:
    """A file that stays in use for minutes after its engine was closed; and copies whose ends are not reported."""
    reports: list[tuple[CopyDone, ...]] = []
    disk, blocks = hung(path, reports.append)
    disk.submit(*map(store, range(5)))
    assert blocks.hangs.wait(PATIENCE)
    disk.close()
    disk.close()
    assert found(path) == []
    blocks.came_back.set()
    assert blocks.closed.wait(PATIENCE)
    assert found(path) == []
    assert reports == []


@pytest.mark.usefixtures("_hasty")
def test_what_was_flushed_stays_so_however_slow_the_disk_is(path: Path) -> None:
    """A cache that was emptied and is back after a restart, since its erasure was dropped among stores."""
    first = opened(path).file
    for slot in (0, 1):
        first.write(slot, keys([slot] * 4)[0], page(slot))
    first.close()
    disk, blocks = hung(path, lambda done: None)
    disk.submit(store(4), Erase(0), store(3), Erase(1))
    assert blocks.hangs.wait(PATIENCE)
    disk.close()
    with pytest.raises(PageFileInUse):  # another engine would find what was flushed
        found(path)
    blocks.came_back.set()
    assert blocks.closed.wait(PATIENCE)
    assert found(path) == [4]


def test_a_listener_that_fails_does_not_end_the_thread(path: Path) -> None:
    """Every later load would be waited for without an end, and the file would stay in use."""
    heard: queue.SimpleQueue[tuple[CopyDone, ...]] = queue.SimpleQueue()

    def deaf(done: tuple[CopyDone, ...]) -> None:
        heard.put(done)
        raise RuntimeError("gone")

    disk = DiskTier(opened(path).file, deaf)
    for slot in (0, 1):
        disk.submit(store(slot))
        assert [done.ticket for done in heard.get(timeout=PATIENCE)] == [slot]
    disk.close()
    assert found(path) == [0, 1]


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_copy_that_ends_while_its_line_closes_is_dropped(path: Path, *, closed_first: bool) -> None:
    """An error in the disk's thread, which then leaves its file in use; or a byte written into a stranger's file."""
    folder = SocketFolder.fresh()
    link = ZmqLink(folder)
    between, go_on = threading.Event(), threading.Event()

    def post(done: tuple[CopyDone, ...]) -> None:
        between.set()
        assert go_on.wait(PATIENCE)
        link.post(Copied(done))

    disk = DiskTier(opened(path).file, post)
    disk.submit(store(2))
    assert between.wait(PATIENCE)  # it is open, as the thread knows, and has its end to report
    closing = threading.Thread(target=disk.close)
    if closed_first:
        link.close()
    stranger = os.pipe()  # they have the numbers of the line's own, if it is closed
    os.set_blocking(stranger[0], False)
    closing.start()
    go_on.set()
    closing.join(PATIENCE)
    with pytest.raises(BlockingIOError):
        os.read(stranger[0], 1)
    for end in stranger:
        os.close(end)
    if not closed_first:
        link.close()
    folder.remove()
    assert found(path) == [2]


def test_a_failed_load_frees_its_target_once(path: Path) -> None:
    """A buffer that two copies write to at once, or one that never comes back."""
    reports: queue.SimpleQueue[tuple[CopyDone, ...]] = queue.SimpleQueue()
    disk = DiskTier(opened(path).file, reports.put)
    target = Bytes()
    disk.submit(DiskRead(7, 3, 0, target))
    ((done,),) = (reports.get(timeout=PATIENCE),)
    assert done.error == "page 3 of the file is empty"
    assert target.frees == 1
    disk.close()
