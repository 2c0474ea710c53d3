"""Pages of layers with a window: where a cached prefix ends, who holds them, and which are taken first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.nodes import NOWHERE, Node
from sluice.kv.usable import usable
from sluice.types import TierLimits, WindowLimits

PAGE = 4


def path_of(held: Sequence[bool]) -> list[Node]:
    nodes = [Node(b"", page, None) for page in range(len(held))]
    for node, has_page in zip(nodes, held, strict=True):
        node.window = node.page if has_page else NOWHERE
    return nodes


@given(held=st.lists(st.booleans(), max_size=12), needed=st.integers(0, 5))
def test_a_prefix_ends_behind_the_last_whole_window(held: list[bool], needed: int) -> None:
    ends = [end for end in range(len(held) + 1) if all(held[max(0, end - needed) : end])]
    assert usable(path_of(held), needed) == max(ends)


@given(
    nodes=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=16),
    needed=st.integers(0, 5),
    every=st.integers(1, 3),
)
def test_a_prefix_with_states_ends_behind_a_record_and_a_whole_window(
    nodes: list[tuple[bool, bool]], needed: int, every: int
) -> None:
    held = [has_page for has_page, _ in nodes]
    path = path_of(held)
    ends = [0]
    for end in range(every, len(path) + 1, every):
        path[end - 1].record = end if nodes[end - 1][1] else NOWHERE
        if nodes[end - 1][1] and all(held[max(0, end - needed) : end]):
            ends.append(end)
    assert usable(path, needed, record_every=every) == max(ends)


def manager(length: int, window_pages: int, pages: int = 64) -> KVManager:
    return KVManager(num_pages=pages, page_size=PAGE, windows=WindowLimits(length, window_pages))


def computed(kv: KVManager, tokens: array[int], step: int = PAGE) -> ResidentLease:
    """A request whose tokens are computed, so many at a time, from what is cached on."""
    path = kv.match(tokens, len(tokens) - 1, "")
    lease = kv.acquire(path[: kv.usable(path)], "")
    for end in range(lease.capacity + step, len(tokens) + 1, step):
        lease.extend(end)
        lease.publish(tokens, end)
        lease.leave(tokens, end)
    return lease


def tokens_of(first: int, count: int) -> array[int]:
    return array("i", range(first, first + count))


@pytest.mark.parametrize(("length", "most"), [(1, 1), (4, 2), (5, 2), (6, 3), (9, 3), (10, 4)])
def test_a_request_holds_its_window_alone(length: int, most: int) -> None:
    """However long it is: the pages of the positions that the next query sees before its own."""
    kv = manager(length, window_pages=8)
    assert kv.windows is not None
    lease = computed(kv, tokens_of(0, 60))
    assert lease.window is not None
    assert len(lease.window.pages) - lease.window.first == kv.windows.num_held == most - 1
    lease.extend(61)
    assert kv.windows.num_held == most
    lease.release(tokens_of(0, 61), 60)
    assert kv.windows.num_held == 0


def test_a_hole_is_filled_by_what_is_computed_again() -> None:
    """Of a long prompt the latest pages are there, and a prompt that begins alike needs earlier ones."""
    kv = manager(length=9, window_pages=8)
    first = tokens_of(0, 60)
    computed(kv, first).release(first, 60)
    found = kv.match(first, 60, "")
    assert [node.window >= 0 for node in found] == [False] * 7 + [True] * 8
    branch = first[:20] + tokens_of(100, 20)
    found = kv.match(branch, 20, "")
    assert (len(found), kv.usable(found)) == (5, 0), "its window has long been left"
    lease = computed(kv, branch)
    pages = lease.private_pages
    assert len(pages) == 10, "what others have published is not written again"
    lease.release(branch, 40)
    assert kv.usable(kv.match(branch, 20, "")) == 5, "the next request with the same beginning finds it"


def test_ends_of_requests_are_kept_longer_than_what_was_passed_over() -> None:
    kv = manager(length=9, window_pages=8)
    chat = tokens_of(0, 16)
    computed(kv, chat).release(chat, 16)
    for number in range(1, 3):  # each passes over eight pages, and ends behind two
        other = tokens_of(1000 * number, 40)
        lease = computed(kv, other)
        lease.release(other, 0)
    found = kv.match(chat, 16, "")
    assert kv.usable(found) == len(found) == 4


def test_pages_of_windows_go_with_their_nodes() -> None:
    kv = manager(length=9, window_pages=8, pages=10)
    assert kv.windows is not None
    first, other = tokens_of(0, 20), tokens_of(100, 40)
    computed(kv, first).release(first, 20)
    lease = computed(kv, other)  # takes the pages of all layers
    lease.discard()
    assert kv.windows.pool.num_free == 8
    assert kv.flush() == 0


def test_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="layers with a window of 9 have pages of their own, and there are tiers"):
        KVManager(num_pages=4, page_size=PAGE, windows=WindowLimits(9, 4), tiers=TierLimits(host_pages=4))
