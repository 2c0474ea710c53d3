"""Where offloaded contexts lie: what begins, what is shared, and what it is called, without a scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.offload import RETRY_AFTER, OffloadLease
from sluice.types import CopyDone, PageCopy, Tier, TierLimits
from worlds import offload_of

SIZE = 2
LONG = array("i", [1, *[0] * 9])
"""A context of five pages."""


OFFLOAD = offload_of(above=4, page_bytes=1, chunk_tokens=4, window_pages=3, num_layers=1)


def manager(tier: Tier = Tier.DISK) -> KVManager:
    sizes = {"host_pages": 10} if tier is Tier.HOST else {"disk_pages": 10}
    tiers = TierLimits(**sizes, write_policy="write-through")
    return KVManager(num_pages=12, page_size=SIZE, tiers=tiers, offload=replace(OFFLOAD, tier=tier))


def opened(kv: KVManager, tokens: array[int], num_pages: int | None = None) -> OffloadLease | None:
    num_tokens = len(tokens) if num_pages is None else num_pages * SIZE
    return kv.offload.open(tokens, len(tokens) - 1, num_tokens, "")


def lease_of(row: list[int], window: list[int]) -> OffloadLease:
    lease = OffloadLease(manager().offload, "", len(row))
    lease.row, lease.window = row, window
    return lease


def end_copies(kv: KVManager) -> list[PageCopy]:
    copies = []
    while kv.tiers.has_work:
        planned, _ = kv.tiers.take_copies()
        for copy in planned:
            kv.copied(CopyDone(copy.ticket))
        copies += planned
    return copies


def compute(kv: KVManager, offload: OffloadLease, tokens: array[int]) -> list[PageCopy]:
    """Page by page, each stored and published before the next. Returns the stores."""
    copies = []
    for end in range(offload.sent + 1, len(tokens) // SIZE + 1):
        offload.publish(tokens, end * SIZE)
        copies += end_copies(kv)
        offload.share_stored(tokens)
    return copies


def compute_resident(kv: KVManager, tokens: Sequence[int]) -> None:
    """An ordinary request that computes these tokens and leaves."""
    known = array("i", tokens)
    lease = kv.acquire([], "")
    lease.extend(len(tokens))
    lease.release(known, len(tokens))


def test_pages_have_the_names_that_the_tree_gives_them() -> None:
    """A page stored under another name would not be found again after a restart, or, worse, be found by others."""
    kv = manager()
    first = opened(kv, LONG[:6])
    assert first is not None
    copies = compute(kv, first, LONG[:6])
    second = opened(kv, LONG)
    assert second is not None
    assert second.stored == 3
    copies += compute(kv, second, LONG)
    names = {node.copies.pages[0]: node.digest for node in kv.tree.nodes() if node.copies is not None}
    stored = {copy.target_page: copy.key.digest for copy in copies if copy.key is not None}
    assert len(names) == 5
    assert {page: stored[page] for page in names} == names


def test_stores_of_a_long_context_are_counted_once_each() -> None:
    """Metrics of a tier that wears out, or that fails, would be wrong."""
    kv = manager()
    lease = opened(kv, LONG)
    assert lease is not None
    compute(kv, lease, LONG[:6])
    lease.publish(LONG, 8)
    (copy,), _ = kv.tiers.take_copies()
    kv.copied(CopyDone(copy.ticket, error="No space left on device"))
    (use,) = kv.tiers.uses()
    assert (use.stored, use.failed_stores) == (3, 1)


@pytest.mark.parametrize(("tier", "cached"), [(Tier.HOST, (6, 6, 0)), (Tier.DISK, (6, 0, 6))])
def test_a_cached_prefix_is_counted_where_it_lies(tier: Tier, cached: tuple[int, int, int]) -> None:
    """`usage` and the metrics name the tier that a prefix came from."""
    kv = manager(tier)
    first = opened(kv, LONG[:6])
    assert first is not None
    assert first.cached == (0, 0, 0)
    compute(kv, first, LONG[:6])
    second = opened(kv, LONG)
    assert second is not None
    assert second.cached == cached


def test_a_page_that_two_computed_is_kept_once() -> None:
    """Two long prompts that begin alike, sent together, would take the tier twice."""
    kv = manager()
    one, other = opened(kv, LONG), opened(kv, LONG)
    assert one is not None
    assert other is not None
    compute(kv, one, LONG)
    assert kv.tiers.uses()[0].used == 10
    compute(kv, other, LONG)
    assert kv.tiers.uses()[0].used == 5
    assert other.row == one.row


def begin_to_load(kv: KVManager, tokens: array[int]) -> ResidentLease:
    """A page that lies on the tier alone is on its way to the device."""
    compute_resident(kv, tokens)
    end_copies(kv)
    kv.pool.give(kv.tree.evict(1))
    lease = kv.acquire([], "")
    lease.start_load(kv.loadable(tokens, [], SIZE, ""))
    return lease


def end_load(kv: KVManager, lease: ResidentLease) -> None:
    end_copies(kv)
    lease.end_load()


def test_room_that_comes_without_a_request_leaving_is_found() -> None:
    """A page that was being read when a long context asked for it would keep it waiting until another one, of an hour,
    has ended."""
    kv = manager()
    lease = begin_to_load(kv, array("i", [2, 2]))
    assert opened(kv, LONG) is not None
    other = array("i", [3, *[0] * 9])
    assert opened(kv, other) is None, "one page is being read"
    end_load(kv, lease)
    assert [opened(kv, other) for _ in range(RETRY_AFTER)] == [None] * RETRY_AFTER
    assert opened(kv, other) is not None


def test_a_request_that_is_alone_asks_each_time() -> None:
    """Nothing runs that would make another step, and another, until it is looked up again."""
    kv = manager()
    lease = begin_to_load(kv, array("i", [2, 2]))
    other = array("i", [3] * 20)
    assert opened(kv, other) is None
    end_load(kv, lease)
    assert opened(kv, other) is not None


def test_nothing_cached_is_given_up_for_one_who_has_to_wait() -> None:
    """A request that waits for an hour would ask again and again, and empty the cache of all others."""
    kv = manager()
    compute_resident(kv, [2, 2, 2, 2])
    end_copies(kv)
    first = opened(kv, LONG)
    assert first is not None
    compute(kv, first, LONG)
    assert opened(kv, array("i", [4] * 6)) is not None
    for _ in range(2 * RETRY_AFTER):
        assert opened(kv, array("i", [3] * 12)) is None
    assert kv.tiers.uses()[0].used == 10
    first.release(LONG, 0)
    assert opened(kv, array("i", [3] * 12)) is not None


def test_a_page_counts_when_all_before_it_do() -> None:
    """Stores end in any order. One that is behind a gap would be read before what is in it is there; and of a context
    of millions of tokens nothing is to be kept for each page."""
    offload = lease_of([0, 1, 2], [0])
    offload.sending = {0, 1, 2}
    offload.ended(1, None)
    assert offload.stored == 0
    offload.ended(0, None)
    assert (offload.stored, offload.done) == (2, set())
    offload.ended(2, "no space left on device")
    assert offload.stored == 2
    assert offload.error == "page 2 of the context could not be stored: no space left on device"


def test_a_place_is_in_use_while_a_step_in_flight_looks_at_it() -> None:
    """The oldest step in flight would see the keys of another part of the context."""
    offload = lease_of([0] * 9, [7, 8, 9])
    offload.stored = 4
    assert (offload.first_held, offload.end_of_window) == (4, 7)
    offload.bases.extend((2, 3))
    assert (offload.first_held, offload.end_of_window) == (2, 5)
    assert offload.window_pages(2, 5) == (9, 7, 8)


def test_a_page_that_the_runner_knows_is_not_changed_for_a_duplicate() -> None:
    """The runner would go on with a page that is another request's by then."""
    kv = manager()
    compute_resident(kv, LONG[:2])
    (of_duplicate,), _ = kv.tiers.take_copies()
    offload = opened(kv, LONG)
    assert offload is not None
    offload.publish(LONG, 2)
    (own,), _ = kv.tiers.take_copies()
    kv.copied(CopyDone(own.ticket))
    offload.share_stored(LONG)
    offload.known = 1  # its next chunk attends to it
    kv.copied(CopyDone(of_duplicate.ticket))
    compute(kv, offload, LONG)
    assert offload.row[0] == own.target_page
    offload.release(LONG, 0)
    assert kv.tiers.uses()[0].used == 5, "what follows it is cached behind the duplicate"
    again = opened(kv, LONG)
    assert again is not None
    assert again.row[0] == of_duplicate.target_page
    assert again.stored == 4
