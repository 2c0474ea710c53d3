"""What a plan's copies bring back is what was there in plan order, or they fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, combinations
from pathlib import Path

import pytest
import torch

import tier_rig
from compiled import all_kernels
from page_files import FaultyBlocks
from sluice.attention.base import PagedKV
from sluice.device.queues import DeviceQueues, Event, InlineQueue
from sluice.storage.copies import NoTiers
from sluice.testing.device import late_queues
from sluice.types import BatchPlan, CopyDone, PageCopy, PlanError, Tier
from tier_rig import DISK_PAGES, HOST_PAGES, PAGES, Rig, content, fill, load, plain_kv, store

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK
ORDERS = [*chain.from_iterable(combinations(DeviceQueues._fields, size) for size in range(4))]


def packed_kv(dtype: torch.dtype) -> list[PagedKV]:
    """Pages as the compiled kernels lay them out. Skips a test, not the module, where there are none."""
    return tier_rig.packed_kv(dtype, all_kernels()[0])


LAYOUTS = [
    *(pytest.param(plain_kv, dtype, id=f"plain-{dtype}") for dtype in (torch.float64, torch.float16)),
    *(pytest.param(packed_kv, dtype, id=f"packed-{dtype}") for dtype in (torch.float32, torch.bfloat16)),
]


@pytest.mark.parametrize(("make", "dtype"), LAYOUTS)
def test_a_page_comes_back_from_every_tier_into_another_page(make, dtype: torch.dtype, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A layer left out, keys for values, or parts of two pages mixed: in every layout that a page can have."""
    kv = make(dtype)
    rig = Rig.of(kv, tmp_path / "pages")
    fill(kv, 0, seed=1)
    fill(kv, 3, seed=2)
    first, second = content(kv, 0), content(kv, 3)
    down = rig.run(
        store(0, DEVICE, 0, HOST, 1), store(1, DEVICE, 3, DISK, 4, seed=3), store(2, HOST, 1, DISK, 0, seed=4)
    )
    assert [done.error for done in down] == [None] * 3
    for page in range(PAGES):
        fill(kv, page, seed=9)
    up = rig.run(
        load(3, HOST, 1, 4, down[0].checksum),
        load(4, DISK, 4, 1, down[1].checksum),
        load(5, DISK, 0, 2, down[2].checksum),
    )
    assert [done.error for done in up] == [None] * 3
    for page, expected in ((4, first), (1, second), (2, first)):
        assert torch.equal(content(kv, page), expected)
    rig.close()


@pytest.mark.parametrize("eager", ORDERS, ids="+".join)
def test_a_page_may_be_overwritten_in_the_plan_that_stores_it(eager: tuple[str, ...], tmp_path: Path) -> None:
    """An evicted page whose next owner's KV is stored in its place: on a device that is as late as events allow."""
    kv = plain_kv(torch.float32)
    rig = Rig.of(kv, tmp_path / "pages", queues=late_queues(eager))
    fill(kv, 0, seed=1)
    before = content(kv, 0)
    copies = (store(0, DEVICE, 0, HOST, 2), store(1, DEVICE, 0, DISK, 3, seed=1))
    begun = rig.copies.begin(BatchPlan(0, (), (), copies=copies), rig.transport)
    rig.transport.queues.compute.run(lambda: fill(kv, 0, seed=2))
    done = [*begun.wait(), *rig.reports.get(timeout=tier_rig.PATIENCE)]
    assert rig.transport.queues.compute.record().query()
    assert not torch.equal(before, content(kv, 0))
    up = rig.run(load(2, HOST, 2, 1, done[0].checksum), load(3, DISK, 3, 4, done[1].checksum))
    assert [each.error for each in up] == [None, None]
    assert torch.equal(content(kv, 1), before)
    assert torch.equal(content(kv, 4), before)
    rig.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_copies_agree_with_a_table(seed: int, tmp_path: Path) -> None:
    """Stores that overtake erasures, slots mixed up, a checksum of what the slot held before."""
    rng, kv = random.Random(seed), plain_kv(torch.float32)
    rig = Rig.of(kv, tmp_path / "pages", queues=late_queues() if seed % 2 else None)
    device: list[torch.Tensor] = []
    for page in range(PAGES):
        fill(kv, page, seed=page)
        device.append(content(kv, page))
    below: dict[tuple[Tier, int], tuple[torch.Tensor, int]] = {}
    sizes = {HOST: HOST_PAGES, DISK: DISK_PAGES}
    for ticket in range(150):
        page, tier = rng.randrange(PAGES), rng.choice([HOST, DISK])
        slot = rng.randrange(sizes[tier])
        match rng.randrange(4):
            case 0:
                fill(kv, page, seed=ticket + 100)
                device[page] = content(kv, page)
            case 1:
                (done,) = rig.run(store(ticket, DEVICE, page, tier, slot, seed=ticket))
                assert done.error is None
                below[tier, slot] = device[page], done.checksum
            case 2 if (tier, slot) in below:
                expected, checksum = below[tier, slot]
                (done,) = rig.run(load(ticket, tier, slot, page, checksum))
                assert done.error is None
                device[page] = expected
            case 3 if tier is DISK and (tier, slot) in below:
                _, checksum = below.pop((tier, slot))
                (done,) = rig.run(load(ticket, tier, slot, page, checksum), dropped=(slot,))
                # A load may overtake the erasure: what it brings then is what was there.
                device[page] = content(kv, page)
        for number, expected in enumerate(device):
            assert torch.equal(content(kv, number), expected), f"page {number} after {ticket}"
    rig.close()


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    """A tier that forgets with its engine."""
    kv = plain_kv(torch.float32)
    first = Rig.of(kv, tmp_path / "pages")
    fill(kv, 0, seed=1)
    before = content(kv, 0)
    (done,) = first.run(store(0, DEVICE, 0, DISK, 5, seed=7))
    first.close()
    again = Rig.of(plain_kv(torch.float32), tmp_path / "pages")
    assert again.opened is not None
    (page,) = again.opened.pages
    assert (page.page, page.checksum, page.key.token_ids) == (5, done.checksum, (7,) * tier_rig.PAGE_SIZE)
    (loaded,) = again.run(load(0, DISK, 5, 2, page.checksum))
    assert loaded.error is None
    assert torch.equal(content(again.kv, 2), before)
    again.close()


def test_stores_that_wait_are_written_at_the_end(tmp_path: Path) -> None:
    """A shutdown that throws away what it was asked to keep."""
    kv = plain_kv(torch.float32)
    first = Rig.of(kv, tmp_path / "pages")
    copies = tuple(store(slot, DEVICE, 0, DISK, slot, seed=slot) for slot in range(DISK_PAGES))
    first.copies.begin(BatchPlan(0, (), (), copies=copies), first.transport)
    first.close()
    again = Rig.of(kv, tmp_path / "pages")
    assert again.opened is not None
    assert len(again.opened.pages) == DISK_PAGES
    again.close()


def damaged_disk(kv: Sequence[PagedKV], path: Path) -> tuple[Rig, CopyDone]:
    rig = Rig.of(kv, path)
    fill(kv, 0, seed=1)
    (done,) = rig.run(store(0, DEVICE, 0, DISK, 5, seed=7))
    return rig, done


def test_a_flipped_bit_on_the_disk_is_a_failed_load(tmp_path: Path) -> None:
    """A wrong token out of a disk that forgets."""
    rig, stored = damaged_disk(plain_kv(torch.float32), tmp_path / "pages")
    assert rig.opened is not None
    at = rig.opened.file.layout.part_at(5, 0) + 77
    with (tmp_path / "pages").open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    (done,) = rig.run(load(1, DISK, 5, 1, stored.checksum))
    assert done.error is not None
    assert "checksum" in done.error
    rig.close()


def test_a_load_of_another_page_than_was_meant_fails(tmp_path: Path) -> None:
    """A slot that was stored anew between plan and load."""
    rig, stored = damaged_disk(plain_kv(torch.float32), tmp_path / "pages")
    (done,) = rig.run(load(1, DISK, 5, 1, stored.checksum ^ 1))
    assert done.error is not None
    (done,) = rig.run(load(2, DISK, 5, 1, stored.checksum))
    assert done.error is None
    rig.close()


def test_a_flipped_bit_in_host_memory_is_a_failed_load() -> None:
    """Memory without error correction, or another writer: any bit of any word."""
    kv = plain_kv(torch.float32)
    rig = Rig.of(kv, None)
    fill(kv, 0, seed=1)
    (stored,) = rig.run(store(0, DEVICE, 0, HOST, 1))
    memory, rng = rig.copies._host.page(1).view(-1), random.Random(0)  # type: ignore[union-attr]
    for ticket in range(1, 60):
        at, mask = rng.randrange(len(memory)), 1 << rng.randrange(8)
        memory[at] ^= mask
        (done,) = rig.run(load(ticket, HOST, 1, 2, stored.checksum))
        assert done.error is not None, f"bit {mask} of byte {at}"
        memory[at] ^= mask
    half = len(memory) // 16 * 8
    memory[:half], memory[half : 2 * half] = memory[half : 2 * half].clone(), memory[:half].clone()
    (done,) = rig.run(load(99, HOST, 1, 2, stored.checksum))
    assert done.error is not None


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), OSError(13, "Permission denied")])
def test_a_disk_that_cannot_be_read_fails_loads_and_nothing_else(error: OSError, tmp_path: Path) -> None:
    """A thread that dies of an error: every later load would be waited for without an end."""
    kv, faulty = plain_kv(torch.float32), []

    def spoiled(inner):  # type: ignore[no-untyped-def]
        faulty.append(FaultyBlocks(inner))
        return faulty[0]

    rig = Rig.of(kv, tmp_path / "pages", blocks=spoiled)
    (stored,) = rig.run(store(0, DEVICE, 0, DISK, 1, seed=1))
    faulty[0].read_error = error
    for ticket in (1, 2):
        (done,) = rig.run(load(ticket, DISK, 1, 2, stored.checksum))
        assert done.error == str(error)
    faulty[0].read_error = None
    (done,) = rig.run(load(3, DISK, 1, 2, stored.checksum))
    assert done.error is None
    rig.close()


def test_a_full_disk_fails_stores_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store that is said to be done and is not; and a line of log for every page that does not fit."""
    kv, faulty = plain_kv(torch.float32), []

    def spoiled(inner):  # type: ignore[no-untyped-def]
        faulty.append(FaultyBlocks(inner))
        return faulty[0]

    rig = Rig.of(kv, tmp_path / "pages", blocks=spoiled)
    faulty[0].room = 100
    for ticket in range(3):
        (done,) = rig.run(store(ticket, DEVICE, 0, DISK, 1, seed=1))
        assert done.error is not None
        assert "No space left" in done.error
        (done,) = rig.run(load(ticket + 10, DISK, 1, 2, 0))
        assert done.error is not None
    faulty[0].room = 1 << 40
    (done,) = rig.run(store(5, DEVICE, 0, DISK, 1, seed=1))
    assert done.error is None
    assert len([record for record in caplog.records if "No space left" in record.message]) == 1
    rig.close()


BAD = [
    (store(0, DEVICE, PAGES, HOST, 0), "page 5 of 5 on device"),
    (store(0, DEVICE, 0, HOST, HOST_PAGES), "page 4 of 4 on host"),
    (store(0, DEVICE, 0, DISK, -1), "page -1 of 6 on disk"),
    (PageCopy(0, DISK, 0, HOST, 0), "a copy from disk to host"),
    (PageCopy(0, DEVICE, 0, DEVICE, 1), "a copy from device to device"),
]


@pytest.mark.parametrize(("copy", "problem"), BAD)
def test_copies_that_cannot_be_are_refused_before_any_begins(copy: PageCopy, problem: str, tmp_path: Path) -> None:
    """A write outside the pool, or half a plan done."""
    rig = Rig.of(plain_kv(torch.float32), tmp_path / "pages")
    with pytest.raises(PlanError, match=problem):
        rig.run(store(1, DEVICE, 0, DISK, 0), copy)
    assert rig.reports.empty()
    rig.close()
    with pytest.raises(PlanError, match="there is no tier"):
        NoTiers().check(BatchPlan(0, (), (), copies=(copy,)))


def test_what_tiers_take(tmp_path: Path) -> None:
    """Memory of the host that the report of memory leaves out."""
    kv = plain_kv(torch.float32)
    rig = Rig.of(kv, tmp_path / "pages")
    page_bytes = sum(layer.k[0].nbytes + layer.v[0].nbytes for layer in kv)
    assert HOST_PAGES * page_bytes <= rig.copies.host_bytes < 2 * HOST_PAGES * page_bytes
    assert rig.copies.disk_bytes == (tmp_path / "pages").stat().st_size
    assert Rig.of(kv, None).copies.disk_bytes == NoTiers().host_bytes == 0
    rig.copies.close()


class PatientQueue(InlineQueue):
    """Runs at once what it is given, after the work that it waits for."""

    def wait(self, event: Event) -> None:
        event.query()


@pytest.mark.parametrize("target", [Tier.HOST, Tier.DISK])
def test_a_load_waits_for_the_store_of_its_page(tmp_path: Path, target: Tier) -> None:
    """The store copied the bytes that had been loaded meanwhile, under the key and with a checksum of its own."""
    kv = plain_kv(torch.float32)
    rig = Rig.of(kv, tmp_path / "pages", queues=late_queues())
    rig.copies._loading = PatientQueue()
    fill(kv, 3, seed=7)
    (stored,) = rig.run(store(0, Tier.DEVICE, 3, Tier.DISK, 1, seed=3))
    fill(kv, 0, seed=1)
    before = content(kv, 0)
    copies = (store(1, Tier.DEVICE, 0, target, 3, seed=1), load(2, Tier.DISK, 1, 0, stored.checksum))
    begun = rig.copies.begin(BatchPlan(1, (), (), copies=copies), rig.transport)
    reports: list[CopyDone] = []
    while len(reports) < (1 if target is Tier.HOST else 2):
        reports += rig.reports.get(timeout=5)
    done = {copy.ticket: copy for copy in [*begun.wait(), *reports]}
    assert done[1].error is None
    assert done[2].error is None
    (loaded,) = rig.run(load(3, target, 3, 4, done[1].checksum))
    assert loaded.error is None
    assert torch.equal(content(kv, 4), before)
    rig.close()
