"""Tiers by themselves: who gives way on a full tier, and what a page is called."""

from __future__ import annotations

from array import array

import pytest

from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node
from sluice.kv.tier_pool import STALE
from sluice.types import CopyDone, PageCopy, Tier, TierLimits

A, B, C = ([first, *[0] * 3] for first in (1, 2, 3))
"""Prompts of two pages of two tokens, none of which begins like another."""


def manager(*, disk_pages: int = 4, **rest: object) -> KVManager:
    limits = TierLimits(disk_pages=disk_pages, **{"write_policy": "write-through", **rest})
    return KVManager(num_pages=4, page_size=2, tiers=limits)


def compute(kv: KVManager, tokens: list[int]) -> None:
    """A request that computes these tokens and leaves."""
    known = array("i", tokens)
    lease = kv.acquire(kv.match(known, len(tokens), ""), "")
    lease.extend(len(tokens))
    lease.release(known, len(tokens))


def end_copies(kv: KVManager, error: str | None = None) -> list[PageCopy]:
    """Plan the copies there are, and have them end."""
    copies, _ = kv.tiers.take_copies()
    for copy in copies:
        kv.copied(CopyDone(copy.ticket, checksum=7, error=error))
    return list(copies)


def on_disk(kv: KVManager) -> set[tuple[int, ...]]:
    """The tokens of every page on the disk, from the beginning on."""
    found = set()
    for node in kv.tree.nodes():
        if node.copies is not None and node.copies.pages[0] >= 0:
            found.add(tuple(tokens_to(node)))
    return found


def tokens_to(node: Node) -> list[int]:
    if node.parent is None:
        return []
    tokens = array("i")
    tokens.frombytes(node.key)
    return [*tokens_to(node.parent), *tokens]


def pages_of(*prompts: list[int]) -> set[tuple[int, ...]]:
    return {tuple(prompt[:end]) for prompt in prompts for end in (2, 4)}


def test_a_full_tier_gives_up_what_was_used_least_recently() -> None:
    kv = manager()
    for prompt in (A, B, A, C):
        compute(kv, prompt)
        end_copies(kv)
    assert on_disk(kv) == pages_of(A, C)


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    """A beginning is of use without its end, and not the other way round."""
    kv = manager(disk_pages=3)
    for prompt in (A, B):
        compute(kv, prompt)
        end_copies(kv)
    assert on_disk(kv) == {tuple(A[:2]), *pages_of(B)}


def test_a_store_that_fails_leaves_no_trace() -> None:
    kv = manager()
    compute(kv, A)
    assert len(end_copies(kv, error="no space left on device")) == 2
    assert on_disk(kv) == set()
    assert kv.tiers.uses()[0].failed_stores == 2
    assert kv.tiers.uses()[0].used == 0
    compute(kv, B)
    compute(kv, C)
    assert kv.match(array("i", A), 4, "") == []


def test_what_left_the_device_while_its_store_failed_is_gone() -> None:
    """It lies nowhere, so no lookup may find it."""
    kv = manager()
    compute(kv, A)
    copies, _ = kv.tiers.take_copies()
    compute(kv, B)
    compute(kv, C)
    assert len(list(kv.tree.nodes())) == 6
    for copy in copies:
        kv.copied(CopyDone(copy.ticket, error="no space left on device"))
    assert {tuple(tokens_to(node)) for node in kv.tree.nodes()} == pages_of(B, C)
    assert kv.tiers.uses()[0].lost == 1, "the second went with the first"


def test_names_are_of_all_tokens_and_of_the_namespace() -> None:
    """Pages that are alike behind beginnings that are not would be served for each other after a restart."""
    kv = manager(disk_pages=20)
    for tokens, extra_key in (([1, 1, 5, 5], ""), ([2, 2, 5, 5], ""), ([1, 1, 5, 5], "tenant")):
        known = array("i", tokens)
        lease = kv.acquire([], extra_key)
        lease.extend(4)
        lease.release(known, 4)
        end = kv.tiers.take_copies()[0]
        assert [copy.key.token_ids for copy in end if copy.key] == [tuple(tokens[:2]), (5, 5)]
        for copy in end:
            kv.copied(CopyDone(copy.ticket))
    digests = {node.digest for node in kv.tree.nodes()}
    assert len(digests) == 6


def test_a_copy_ends_once() -> None:
    kv = manager()
    compute(kv, A)
    (first, _), _ = kv.tiers.take_copies()
    kv.copied(CopyDone(first.ticket))
    with pytest.raises(AssertionError, match="was not planned"):
        kv.copied(CopyDone(first.ticket))


def test_a_request_may_have_pages_of_its_own_on_a_tier() -> None:
    """All of them or none; cached ones give way, and what it gives back is free."""
    kv = manager()
    compute(kv, A)
    end_copies(kv)
    assert kv.tiers.take(Tier.DISK, 5) is None
    taken = kv.tiers.take(Tier.DISK, 3)
    assert taken is not None
    assert len(set(taken)) == 3
    assert on_disk(kv) == {tuple(A[:2])}
    kv.tiers.give(Tier.DISK, taken)
    assert kv.tiers.uses()[0].used == 1


def test_the_queue_of_who_may_go_does_not_grow_with_use() -> None:
    """Every load offers its pages again. Once the queue is cleared the order is as before."""
    kv = manager()
    for prompt in (A, B):
        compute(kv, prompt)
        end_copies(kv)
    (disk,) = kv.tiers.pools
    (leaf,) = [node for node in kv.tree.nodes() if tokens_to(node) == B]
    compute(kv, A)
    lengths = [len(disk._leaves)]
    while lengths == sorted(lengths):
        disk.offer(leaf)
        lengths.append(len(disk._leaves))
        assert lengths[-1] <= STALE * 4
    compute(kv, C)
    end_copies(kv)
    assert on_disk(kv) == pages_of(A, C)


def test_what_waits_to_be_stored_is_bounded_by_what_is_on_the_device() -> None:
    """A disk that hangs would have the queue grow with every page that is ever computed."""
    kv = manager(disk_pages=4, copies_in_flight=1, copies_per_step=1)
    for first in range(200):
        compute(kv, [first, 0, 0, 0])
        kv.tiers.take_copies()
        assert len(kv.tiers._stores._wanted) <= STALE * 4 + 1


def test_what_no_tier_has_counts_as_lost_by_the_first() -> None:
    """A dashboard that blames the disk for pages that a full device evicted and that were not to be stored."""
    kv = manager(host_pages=2, write_policy="selective")
    for prompt in (A, B, C):
        compute(kv, prompt)
        end_copies(kv)
    assert [use.lost for use in kv.tiers.uses()] == [2, 0]


def test_write_back_stores_nothing_that_has_its_place_on_the_device() -> None:
    """Every prompt that comes twice would be written, as with `selective`."""
    kv = manager(write_policy="write-back")
    for _ in range(3):
        compute(kv, A)
        assert not end_copies(kv)


def test_a_copy_that_failed_a_reader_is_not_loaded() -> None:
    """It is still read by another, so it cannot be given up yet."""
    kv = manager()
    compute(kv, A)
    end_copies(kv)
    path = kv.match(array("i", A), 4, "")
    kv.tiers.read(path, Tier.DISK)
    kv.tiers.suspected(path[0])
    for prompt in (B, C):
        compute(kv, prompt)
    known = array("i", A)
    assert kv.match(known, 4, "") == []
    assert kv.loadable(known, [], 4, "") == []
    kv.tiers.unread(path)
    assert not pages_of(A) & on_disk(kv)


@pytest.mark.parametrize(("policy", "stores"), [("write-through", 1), ("selective", 1), ("write-back", 0)])
def test_a_bad_copy_of_what_is_on_the_device_is_stored_anew_if_the_policy_stores_it(policy: str, stores: int) -> None:
    """Under write-back it would be written though it is where it is needed."""
    kv = manager(write_policy=policy)
    for _ in range(2):
        compute(kv, A)
        end_copies(kv)
    kv.pool.give(kv.tree.evict(2))
    end_copies(kv)
    assert on_disk(kv) == pages_of(A)
    lease = kv.acquire([], "")
    lease.start_load(kv.loadable(array("i", A), [], 4, ""))
    end_copies(kv)
    lease.end_load()
    kv.tiers.suspected(lease.path[0])
    assert on_disk(kv) == {tuple(A)}
    assert len(end_copies(kv)) == stores


def test_loads_leave_a_quarter_of_a_plan_to_stores_that_wait() -> None:
    """Where prompts come back all the time, new ones would never reach the tier."""
    kv = KVManager(num_pages=32, page_size=2, tiers=TierLimits(disk_pages=32, copies_per_step=16))
    old, new = array("i", [1, *[0] * 31]), array("i", [2, *[0] * 31])
    compute(kv, list(old))
    end_copies(kv)
    kv.pool.give(kv.tree.evict(16))
    lease = kv.acquire([], "")
    lease.start_load(kv.loadable(old, [], 32, ""))
    compute(kv, list(new))
    copies, _ = kv.tiers.take_copies()
    assert [copy.target for copy in copies] == [Tier.DEVICE] * 12 + [Tier.DISK] * 4


def test_who_leaves_the_tree_while_it_is_read_leaves_each_tier_once() -> None:
    """The page before it would count children that it never had, and give up its place too early or never."""
    kv = manager(host_pages=4)
    compute(kv, A)
    copies, _ = kv.tiers.take_copies()
    for copy in copies:
        error = "no space left on device" if copy.target is Tier.DISK else None
        kv.copied(CopyDone(copy.ticket, checksum=7, error=error))
    first, second = kv.match(array("i", A), 4, "")
    lease = kv.acquire([first], "")
    kv.tiers.read([second], Tier.HOST)
    kv.flush()
    assert first.copies is not None
    assert first.copies.children == [0, 0]
    kv.tiers.unread([second])
    lease.release(array("i", A), 2)


def test_a_place_that_is_written_anew_is_not_forgotten() -> None:
    """The file would erase, in the same step, the entry of the page that has just come there."""
    kv = manager(disk_pages=2)
    compute(kv, A)
    end_copies(kv)
    compute(kv, B)
    copies, dropped = kv.tiers.take_copies()
    assert {copy.target_page for copy in copies} == {0, 1}
    assert dropped == ()


def test_who_comes_back_from_a_runner_that_is_gone_is_not_heard() -> None:
    """The disk's thread ends copies that the device's loss has ended already."""
    kv = manager()
    compute(kv, A)
    copies, _ = kv.tiers.take_copies()
    kv.forget_flights()
    for copy in copies:
        kv.copied(CopyDone(copy.ticket, checksum=7))
    assert not on_disk(kv)
    assert kv.tiers.uses()[0].used == 0


def test_what_was_on_its_way_from_a_runner_that_is_gone_has_not_come() -> None:
    """A page that was never written would be read as the beginning of a prompt."""
    kv, known = manager(), array("i", B)
    compute(kv, B)
    end_copies(kv)
    for prompt in (A, C):
        compute(kv, prompt)
    nodes = kv.loadable(known, [], 4, "")
    assert len(nodes) == 2
    lease = kv.acquire([], "")
    lease.start_load(nodes)
    copies, _ = kv.tiers.take_copies()
    assert any(copy.target is Tier.DEVICE for copy in copies)
    kv.forget_flights()
    lease.release(known, 0)
    assert kv.match(known, 4, "") == []


def test_a_page_that_failed_before_the_runner_was_gone_is_given_up() -> None:
    """What is left of the load begins before it, so its number is that of no page of the load any more."""
    kv, known = manager(), array("i", B)
    compute(kv, B)
    end_copies(kv)
    for prompt in (A, C):
        compute(kv, prompt)
    nodes = kv.loadable(known, [], 4, "")
    first, _ = nodes
    lease = kv.acquire([], "")
    lease.start_load(nodes)
    copies, _ = kv.tiers.take_copies()
    (_, last) = [copy for copy in copies if copy.target is Tier.DEVICE]
    kv.copied(CopyDone(last.ticket, error="unreadable"))
    kv.forget_flights()
    lease.release(known, 0)
    assert kv.loadable(known, [], 4, "") == [first]
