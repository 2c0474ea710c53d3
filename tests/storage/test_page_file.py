"""A page that a page file gives back is the one that was stored, or it says that it is lost."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from page_files import GEOMETRY, SIZE, SLOTS, FaultyBlocks, blank, keys, load, opened, page
from sluice.storage.blocks import FileBlocks
from sluice.storage.page_file import PageFile, read_index, restored
from sluice.storage.page_file_format import BLOCK, MAGIC, VERSION, FileLayout, PageFileError, PageLost
from sluice.types import StoredPage

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
LAYOUT = FileLayout(GEOMETRY, SLOTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages"


def test_pages_come_back_after_the_file_was_closed(path: Path) -> None:
    """A restart that keeps the records but loses which prompt they belong to, or mixes slots up."""
    first = opened(path)
    assert (first.pages, first.discarded) == ((), None)
    for slot, key in zip((4, 1, 5), keys(PROMPT, "tenant"), strict=True):
        first.file.write(slot, key, page(slot))
    first.file.close()
    again = opened(path)
    assert again.discarded is None
    assert hung(again.pages) == [(4, -1), (1, 4), (5, 1)]
    assert [found.key.extra_key for found in again.pages] == ["tenant"] * 3
    assert [token for found in again.pages for token in found.key.token_ids] == PROMPT
    for slot in (4, 1, 5):
        assert load(again.file, slot) == b"".join(page(slot))
    again.file.close()


def test_a_layer_of_a_page_is_one_piece_of_the_file(path: Path) -> None:
    """Contexts that attend in place read a layer at its offset: parts laid out otherwise would be another layer's."""
    file = opened(path).file
    parts = page(7)
    file.write(2, None, parts)
    data = path.read_bytes()
    for layer in range(GEOMETRY.num_layers):
        at = LAYOUT.part_at(2, layer)
        assert data[at : at + 2 * GEOMETRY.part_bytes] == bytes(parts[2 * layer]) + bytes(parts[2 * layer + 1])
    assert LAYOUT.part_at(0, 0) % BLOCK == 0
    file.close()


def test_a_layer_can_be_read_alone_and_is_checked_alone(path: Path) -> None:
    """Contexts that are read layer by layer and trust what they find; after a restart, too."""
    first = opened(path)
    parts = page(7)
    first.file.write(2, keys(PROMPT)[0], parts)
    flip(path, LAYOUT.part_at(2, 1) + 3, 1)
    first.file.close()
    file = opened(path).file
    for layer in (0, 2):
        k, v = blank()[:2]
        file.read_layer([2], layer, k, v)
        assert (k, v) == tuple(parts[2 * layer : 2 * layer + 2])
    with pytest.raises(PageLost, match="checksum"):
        file.read_layer([2], 1, *blank()[:2])
    with pytest.raises(PageLost, match="of the file is empty"):
        file.read_layer([3], 1, *blank()[:2])
    file.close()


def test_a_page_without_a_name_is_not_found_again(path: Path) -> None:
    """What belongs to a request alone would come back as a cached prefix, and the slot's former name with it."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    first.file.write(0, None, page(1))
    assert load(first.file, 0) == b"".join(page(1))
    first.file.close()
    again = opened(path)
    assert again.pages == ()
    with pytest.raises(PageLost, match="page 0 of the file is empty"):
        again.file.read(0, blank())
    again.file.close()


def test_an_erased_page_is_gone_for_good(path: Path) -> None:
    """A flushed cache that is back after a restart."""
    first = opened(path)
    root, child, _ = keys(PROMPT)
    first.file.write(0, root, page(0))
    first.file.write(1, child, page(1))
    first.file.erase(0)
    with pytest.raises(PageLost):
        first.file.read(0, blank())
    first.file.close()
    assert opened(path).pages == ()


def test_a_page_whose_parent_is_missing_is_not_restored_and_one_stored_twice_is_once(path: Path) -> None:
    """A tree with a node that hangs from nothing, or two nodes for the same tokens."""
    first = opened(path)
    root, child, grandchild = keys(PROMPT)
    first.file.write(0, grandchild, page(0))
    first.file.write(1, root, page(1))
    first.file.write(2, root, page(2))
    first.file.close()
    again = opened(path)
    assert hung(again.pages) == [(2, -1)]
    again.file.write(3, child, page(3))
    again.file.close()
    assert hung(opened(path).pages) == [(2, -1), (3, 2), (0, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_in_the_middle_of_a_store_leaves_a_file_that_is_consistent(path: Path, seed: int) -> None:
    """A half-written record under the entry of what the slot held before, or of what it was to hold."""
    first = opened(path)
    first.file.close()
    rng = random.Random(seed)
    truth: dict[tuple[str, int], int] = {}
    for _ in range(40):
        inner = FileBlocks(os.open(path, os.O_RDWR))
        blocks = FaultyBlocks(inner, room=rng.choice([0, 10, 64, 100, 1500, 2000, 3000, 10_000, 20_000]))
        file = PageFile(blocks, LAYOUT, read_index(inner, LAYOUT).entries)
        for _ in range(4):
            key, slot, content = rng.choice("ab"), rng.randrange(SLOTS), rng.randrange(1 << 30)
            truth[key, content] = slot
            try:
                file.write(slot, keys([content % 50] * 4, key)[0], page(content))
            except OSError:
                break
        file.close()
        inner = FileBlocks(os.open(path, os.O_RDWR))
        index = read_index(inner, LAYOUT).entries
        survivor = PageFile(inner, LAYOUT, index)
        for found in restored(index):
            content = next(
                (
                    content
                    for (key, content), slot in truth.items()
                    if key == found.key.extra_key
                    and slot == found.page
                    and keys([content % 50] * 4, key)[0].token_ids == found.key.token_ids
                    and b"".join(page(content)) == load(survivor, found.page)
                ),
                None,
            )
            assert content is not None, f"{found} was never stored like that"
        survivor.close()


def test_every_flipped_bit_of_a_record_is_noticed(path: Path) -> None:
    """A wrong token out of a disk that forgets."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    rng = random.Random(0)
    for _ in range(50):
        layer = rng.randrange(GEOMETRY.num_layers)
        at = LAYOUT.part_at(0, layer) + rng.randrange(2 * GEOMETRY.part_bytes)
        flip(path, at, 1 << rng.randrange(8))
        with pytest.raises(PageLost, match="checksum"):
            first.file.read(0, blank())
        restore(path, LAYOUT.part_at(0, layer), b"".join(page(0)[2 * layer : 2 * layer + 2]))
    assert load(first.file, 0) == b"".join(page(0))
    first.file.close()


def test_a_flipped_bit_of_the_index_costs_that_entry_alone(path: Path) -> None:
    """A page found under tokens that are not its own."""
    first = opened(path)
    for slot in range(3):
        first.file.write(slot, keys([slot] * 4)[0], page(slot))
    first.file.close()
    whole = path.read_bytes()
    for at in range(LAYOUT.entry_at(1), LAYOUT.entry_at(2), 37):
        flip(path, at, 4)
        again = opened(path)
        assert sorted(found.page for found in again.pages) in ([0, 2], [0, 1, 2])
        assert {found.page: found.key.token_ids for found in again.pages}.items() <= {
            slot: keys([slot] * 4)[0].token_ids for slot in range(3)
        }.items()
        again.file.close()
        restore(path, 0, whole)


def test_a_file_that_was_cut_off_loses_pages_and_nothing_else(path: Path) -> None:
    """Another process truncates the file under a running engine: a crash, or zeros taken for KV."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    first.file.write(5, keys([9] * 4)[0], page(5))
    os.truncate(path, LAYOUT.part_at(5, GEOMETRY.num_layers - 1) + 10)
    assert load(first.file, 0) == b"".join(page(0))
    with pytest.raises(PageLost, match="the file ends at byte"):
        first.file.read(5, blank())
    first.file.write(5, keys([9] * 4)[0], page(6))
    assert load(first.file, 5) == b"".join(page(6))
    os.truncate(path, 1000)
    first.file.close()
    again = opened(path)
    assert (again.pages, again.discarded) == ((), "ends in its header")
    again.file.close()
    os.truncate(path, LAYOUT.part_at(3, 0))
    again = opened(path)
    assert again.discarded == f"was cut off at byte {LAYOUT.part_at(3, 0)} of {LAYOUT.file_bytes}"
    assert path.stat().st_size == LAYOUT.file_bytes
    again.file.close()


def test_a_full_disk_fails_one_store_and_leaves_the_slot_empty(path: Path) -> None:
    """A store that failed and whose half-written page is loaded as if it were whole."""
    file = opened(path).file
    file.write(0, keys(PROMPT)[0], page(0))
    inner = FileBlocks(os.open(path, os.O_RDWR))
    faulty = PageFile(FaultyBlocks(inner, room=100), LAYOUT, read_index(inner, LAYOUT).entries)
    with pytest.raises(OSError, match="No space left"):
        faulty.write(0, keys([5] * 4)[0], page(1))
    with pytest.raises(PageLost):
        faulty.read(0, blank())
    faulty.close()
    file.close()
    assert opened(path).pages == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "another"}, "holds the KV of other weights"),
        ({"dtype": "bfloat16"}, "holds KV in float32, not bfloat16"),
        ({"layout": "packed"}, "holds the layout plain, not packed"),
        ({"code": "next"}, "holds what was computed by test, not next"),
        ({"num_layers": 2}, "holds layers: 3, not 2"),
        ({"checksum": "crc32"}, "holds checksums by crc32c, not crc32"),
    ],
)
def test_what_another_model_left_is_discarded_with_the_reason(path: Path, change: dict[str, str], reason: str) -> None:
    """KV of one model read by another: tokens without sense, silently."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    first.file.close()
    geometry = replace(GEOMETRY, **change)  # type: ignore[arg-type]
    other = opened(path, geometry)
    assert (other.pages, other.discarded) == ((), reason)
    with pytest.raises(PageLost):
        other.file.read(0, blank(geometry))
    other.file.close()
    back = opened(path)
    assert back.pages == ()
    back.file.close()


def test_a_file_of_the_version_before_is_discarded_with_the_reason(path: Path) -> None:
    """Pages at the offsets of another version: what is read there is KV of another layer, and every checksum fails."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    first.file.close()
    restore(path, len(MAGIC), (1).to_bytes(4, "little"))
    again = opened(path)
    assert (again.pages, again.discarded) == ((), f"has version 1 of the format, not {VERSION}")
    again.file.close()


def test_another_size_discards_too_and_is_kept_to(path: Path) -> None:
    """An index read at the offsets of another file; a tier larger than what was allowed."""
    first = opened(path)
    first.file.write(0, keys(PROMPT)[0], page(0))
    first.file.close()
    larger = opened(path, size=2 * SIZE)
    assert larger.pages == ()
    assert larger.discarded is not None
    assert larger.discarded.startswith("has room for 6 pages")
    assert path.stat().st_size <= 2 * SIZE
    larger.file.close()


def test_two_engines_do_not_share_a_file(path: Path) -> None:
    """Each would overwrite the other's pages and trust its own index."""
    first = opened(path)
    with pytest.raises(PageFileError, match="in use by another engine"):
        opened(path)
    first.file.close()
    opened(path).file.close()


def test_the_lock_ends_with_the_engine_despite_forks(path: Path) -> None:
    """A worker that was forked has all descriptors, and with them the lock: the file would be in use as long as it
    lives."""
    first = opened(path)
    inherited = os.dup(first.file._blocks._descriptor)  # type: ignore[attr-defined]
    first.file.close()
    opened(path).file.close()
    os.close(inherited)


def test_the_lock_ends_with_a_killed_process(path: Path) -> None:
    """An engine that is killed would leave a lock that keeps its successor out."""
    code = (
        "import sys, os, signal; from pathlib import Path; from page_files import opened\n"
        "held = opened(Path(sys.argv[1])); print('open', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    roots = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], env={"PYTHONPATH": roots}, capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout) == (-9, "open\n"), child.stderr
    opened(path).file.close()


def test_only_its_owner_can_read_it(path: Path) -> None:
    """Prompts of all users, as tokens and as KV, open to every user of the machine."""
    old = os.umask(0)
    try:
        opened(path).file.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        opened(path).file.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_file_that_is_something_else_is_left_alone(path: Path) -> None:
    """A typing mistake that costs a user's data."""
    path.write_text("my thesis")
    with pytest.raises(PageFileError, match="is not a page file"):
        opened(path)
    assert path.read_text() == "my thesis"
    with pytest.raises(PageFileError, match="Is a directory"):
        opened(path.parent)
    with pytest.raises(PageFileError, match="No such file"):
        opened(path.parent / "missing" / "pages")
    fifo = path.parent / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(PageFileError, match="must be a file"):
        opened(fifo)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path.parent / "socket"))
        with pytest.raises(PageFileError, match="cannot be opened"):
            opened(path.parent / "socket")


def test_a_file_that_cannot_be_read_is_refused_by_name_and_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of the system's and a traceback; and a file that is in use, once its disk is mended."""

    def broken(self: FileBlocks, buffers: Sequence[memoryview], offset: int) -> None:
        raise OSError(5, "Input/output error")

    opened(path).file.close()
    with monkeypatch.context() as patched:
        patched.setattr(FileBlocks, "read", broken)
        with pytest.raises(PageFileError, match=f"--kv-disk {path} cannot be used: Input/output error"):
            opened(path)
    opened(path).file.close()


def test_a_closed_file_reaches_no_other(path: Path) -> None:
    """A read that hung while its engine was closed goes on in the file that has its descriptor by then."""
    blocks = FileBlocks(os.open(path, os.O_RDWR | os.O_CREAT))
    blocks.close()
    other = os.open(path.parent / "other", os.O_RDWR | os.O_CREAT)  # the same number
    for use in (lambda: blocks.write([b"x"], 0), lambda: blocks.read(blank(), 0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()
    blocks.close()
    assert os.fstat(other).st_size == 0
    os.close(other)


def test_an_interrupted_beginning_is_begun_again(path: Path) -> None:
    """Killed while the file was made: a file that no start accepts any more."""
    path.write_bytes(b"SluiceKV")
    found = opened(path)
    assert (found.pages, found.discarded) == ((), "ends in its header")
    found.file.close()


@pytest.mark.parametrize("size", [1, 4096, 3 * 4096])
def test_a_file_too_small_for_one_page_says_how_large_it_must_be(path: Path, size: int) -> None:
    """A tier that accepts its flag and never stores anything."""
    with pytest.raises(PageFileError, match="--kv-disk-bytes must be at least 16384, room for one page of 4 tokens"):
        opened(path, size=size)
    opened(path, size=16384).file.close()


def test_a_name_that_does_not_fit_the_index_fails_that_store(path: Path) -> None:
    """An extra key cut to what fits would let one tenant find another's pages."""
    file = opened(path).file
    with pytest.raises(ValueError, match="an extra key of 1025 bytes"):
        file.write(0, keys(PROMPT, "x" * 1025)[0], page(0))
    file.write(0, keys(PROMPT, "é" * 512)[0], page(0))
    file.close()
    assert [found.key.extra_key for found in opened(path).pages] == ["é" * 512]


def hung(pages: Iterable[StoredPage]) -> list[tuple[int, int]]:
    """The slot of each page, and that of its parent; -1: it has none."""
    slots = {b"": -1}
    for found in pages:
        slots[found.key.digest] = found.page
    return [(found.page, slots[found.key.parent]) for found in pages]


def flip(path: Path, at: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def restore(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
