"""The prefix tree, by example. The machine in `test_kv_machine.py` compares it with a slow model."""

import random
from array import array
from collections.abc import Sequence

import pytest

from sluice.kv.lower_tiers import LowerTiers
from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.prefix_cache import PrefixTree


def tokens_of(*values: int) -> array:
    return array("i", values)


def run_request(kv: KVManager, tokens: Sequence[int], extra_key: str = "") -> ResidentLease:
    """Admit, compute and publish a whole prompt; the lease is still held."""
    tokens = array("i", tokens)
    lease = kv.acquire(kv.match(tokens, len(tokens) - 1, extra_key), extra_key)
    lease.extend(len(tokens))
    lease.publish(tokens, len(tokens))
    return lease


def leave(kv: KVManager, lease: ResidentLease, tokens: Sequence[int]) -> None:
    lease.release(array("i", tokens), len(tokens))


def test_a_second_request_finds_the_pages_of_the_first() -> None:
    """A shared system prompt is computed once: the rows point at the same pages."""
    kv = KVManager(num_pages=8, page_size=2)
    first = run_request(kv, [1, 2, 3, 4, 5])
    second = run_request(kv, [1, 2, 3, 4, 9])
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]


def test_at_least_one_token_is_left_to_compute() -> None:
    """A logit is needed even when the whole prompt is cached."""
    kv = KVManager(num_pages=8, page_size=2)
    run_request(kv, [1, 2, 3, 4])
    assert len(kv.match(tokens_of(1, 2, 3, 4), 3, "")) == 1


def test_a_half_full_page_is_not_shared() -> None:
    kv = KVManager(num_pages=8, page_size=4)
    run_request(kv, [1, 2, 3, 4, 5, 6])
    assert len(kv.match(tokens_of(1, 2, 3, 4, 5, 6, 7, 8, 9), 9, "")) == 1


def test_equal_tokens_under_different_keys_share_nothing() -> None:
    kv = KVManager(num_pages=8, page_size=1)
    first = run_request(kv, [1, 2, 3], "a")
    assert kv.match(tokens_of(1, 2, 3), 3, "b") == []
    second = run_request(kv, [1, 2, 3], "b")
    assert not set(first.pages) & set(second.pages)


def test_the_least_recently_used_leaf_goes_first() -> None:
    kv = KVManager(num_pages=4, page_size=1)
    old, new = [1, 1], [2, 2]
    leave(kv, run_request(kv, old), old)
    leave(kv, run_request(kv, new), new)
    kv.tree.evict(1)
    assert len(kv.match(tokens_of(1, 1), 2, "")) == 1, "the old one's last page goes, its first stays"
    assert len(kv.match(tokens_of(2, 2), 2, "")) == 2


def test_use_makes_recent() -> None:
    """A hit moves the whole path to the end of the queue for eviction."""
    kv = KVManager(num_pages=4, page_size=1)
    for prompt in ([1, 1], [2, 2]):
        leave(kv, run_request(kv, prompt), prompt)
    lease = kv.acquire(kv.match(tokens_of(1, 1), 2, ""), "")
    lease.release(tokens_of(1, 1), 2)
    kv.pool.give(kv.tree.evict(2))
    assert len(kv.match(tokens_of(1, 1), 2, "")) == 2
    assert kv.match(tokens_of(2, 2), 2, "") == []


def test_a_page_counts_as_used_until_its_request_leaves() -> None:
    """A long generation's prompt is not stale because the generation took long."""
    kv = KVManager(num_pages=4, page_size=1)
    early, late = run_request(kv, [1, 1]), run_request(kv, [2, 2])
    leave(kv, late, [2, 2])
    leave(kv, early, [1, 1])
    kv.pool.give(kv.tree.evict(2))
    assert len(kv.match(tokens_of(1, 1), 2, "")) == 2


def test_what_a_duplicate_leaves_behind_is_recent() -> None:
    kv = KVManager(num_pages=8, page_size=1)
    leave(kv, run_request(kv, [1, 1]), [1, 1])
    first = run_request(kv, [7])
    second = kv.acquire([], "")
    second.extend(2)
    leave(kv, second, [7, 8])
    leave(kv, first, [7])
    kv.pool.give(kv.tree.evict(1))
    assert len(kv.match(tokens_of(7, 8), 2, "")) == 2
    assert len(kv.match(tokens_of(1, 1), 2, "")) == 1


def test_a_leaf_that_gains_a_child_is_no_leaf() -> None:
    """A page evicted from under another would leave that one in the tree and out of reach."""
    kv = KVManager(num_pages=8, page_size=1)
    first = run_request(kv, [7])
    second = kv.acquire([], "")
    second.extend(2)
    leave(kv, first, [7])
    leave(kv, second, [7, 8])
    kv.pool.give(kv.tree.evict(1))
    assert len(kv.match(tokens_of(7, 8), 2, "")) == 1


def test_only_a_leaf_that_no_request_holds_is_offered() -> None:
    """`is_offered` is what law 3 goes by."""
    tree = PrefixTree(1, LowerTiers())
    kv = KVManager(num_pages=4, page_size=1)
    kv.tree = tree
    leave(kv, run_request(kv, [1]), [1])
    leave(kv, run_request(kv, [2, 3]), [2, 3])
    (one,) = kv.match(tokens_of(1), 1, "")
    two, three = kv.match(tokens_of(2, 3), 2, "")
    assert [tree.is_offered(node) for node in (one, two, three)] == [True, False, True]
    kv.acquire([one], "")
    assert [tree.is_offered(node) for node in (one, two, three)] == [False, False, True]


def test_a_held_page_is_never_evicted() -> None:
    kv = KVManager(num_pages=3, page_size=1)
    lease = run_request(kv, [1, 2, 3])
    assert kv.available == 0
    with pytest.raises(AssertionError, match="1 pages to evict, 0 evictable"):
        kv.tree.evict(1)
    leave(kv, lease, [1, 2, 3])
    assert kv.available == 3


def test_duplicates_keep_their_own_pages_and_hold_no_others() -> None:
    """Two requests compute the same prompt side by side. If the later one held the earlier one's pages beside its own,
    a request that fits the pool could wait for ever for its last page."""
    kv = KVManager(num_pages=6, page_size=1)
    first = kv.acquire([], "")
    second = kv.acquire([], "")
    for lease in (first, second):
        lease.extend(3)
        lease.publish(tokens_of(7, 8, 9), 3)
    assert not set(first.pages) & set(second.pages)
    assert [node.page for node in first.path] == first.pages
    assert second.path == []
    leave(kv, first, [7, 8, 9])
    assert kv.available == 3


def test_a_duplicate_that_leaves_gives_its_doubles_back_and_keeps_the_rest_cached() -> None:
    """Its own continuation is found again by the next turn of its conversation."""
    kv = KVManager(num_pages=8, page_size=1)
    first = run_request(kv, [7, 8])
    second = kv.acquire([], "")
    second.extend(4)
    second.publish(tokens_of(7, 8, 5, 6), 4)
    leave(kv, second, [7, 8, 5, 6])
    assert kv.pool.num_free == 4
    path = kv.match(tokens_of(7, 8, 5, 6, 1), 5, "")
    assert [node.page for node in path][:2] == first.pages
    assert len(path) == 4


def test_a_duplicate_behind_a_shared_beginning_leaves_its_pages_where_they_belong() -> None:
    """Kept under an earlier node, they would be found behind a prompt that they were not computed for."""
    kv = KVManager(num_pages=8, page_size=1)
    leave(kv, run_request(kv, [7, 8]), [7, 8])
    second = kv.acquire(kv.match(tokens_of(7, 8), 2, ""), "")
    first = run_request(kv, [7, 8, 9])
    second.extend(4)
    leave(kv, second, [7, 8, 9, 5])
    assert kv.match(tokens_of(7, 9), 2, "") == kv.match(tokens_of(7), 1, "")
    assert len(kv.match(tokens_of(7, 8, 9, 5), 4, "")) == 4
    leave(kv, first, [7, 8, 9])


def test_a_duplicate_goes_on_publishing_when_the_other_is_evicted() -> None:
    kv = KVManager(num_pages=8, page_size=1)
    first = run_request(kv, [7])
    second = kv.acquire([], "")
    second.extend(2)
    second.publish(tokens_of(7, 8), 2)
    assert second.path == []
    leave(kv, first, [7])
    kv.flush()
    second.publish(tokens_of(7, 8), 2)
    assert [node.page for node in second.path] == second.pages


def test_an_empty_namespace_is_forgotten() -> None:
    """Or a server with a salt per user would grow for ever."""
    tree = PrefixTree(1, LowerTiers())
    kv = KVManager(num_pages=2, page_size=1)
    kv.tree = tree
    for user in range(100):
        leave(kv, run_request(kv, [1], str(user)), [1])
    assert tree.num_namespaces <= 2
    kv.flush()
    assert tree.num_namespaces == 0


def test_a_request_shorter_than_a_page_leaves_no_namespace() -> None:
    """Nothing of it will ever be evicted, so nothing else would end it."""
    kv = KVManager(num_pages=2, page_size=2)
    tree = kv.tree = PrefixTree(2, LowerTiers())
    leave(kv, run_request(kv, [1], "a user"), [1])
    assert tree.num_namespaces == 0


def test_a_leaf_that_eviction_does_not_know_is_not_offered() -> None:
    """Another page of the same age in the queue does not speak for it. The tree is broken by hand: no call leaves it
    so."""
    tree = PrefixTree(1, LowerTiers())
    kv = KVManager(num_pages=4, page_size=1)
    kv.tree = tree
    leave(kv, run_request(kv, [2, 3]), [2, 3])
    two, three = kv.match(tokens_of(2, 3), 2, "")
    two.children.clear()
    assert [tree.is_offered(node) for node in (two, three)] == [False, True]


def test_a_duplicate_is_used_when_the_request_that_computed_it_again_leaves() -> None:
    """Later than the pages that left before, all of it."""
    kv = KVManager(num_pages=8, page_size=1)
    for chain in ([5], [7, 8], [5]):
        leave(kv, run_request(kv, chain), chain)
    pages = [node.page for chain in ([5], [7, 8]) for node in kv.match(tokens_of(*chain), 2, "")]
    assert kv.tree.evict(3) == [pages[2], pages[1], pages[0]]


def test_eviction_stays_in_order_after_its_queue_is_cleared() -> None:
    """A heap from whose top stale entries were taken is not one until it is made one again."""
    tree = PrefixTree(1, LowerTiers())
    kv = KVManager(num_pages=65, page_size=1)
    kv.tree = tree
    for token in range(64):
        leave(kv, run_request(kv, [token]), [token])
    assert tree.evict(20) == list(range(20))
    touched = range(20, 27)
    offers = 0
    while tree.num_offers >= offers:
        offers = tree.num_offers
        for token in touched:
            leave(kv, run_request(kv, [token]), [token])
    assert tree.evict(44) == [*range(27, 64), *touched]


def test_the_eviction_queue_does_not_grow_with_use() -> None:
    """Stale entries are cleared, or every request would leave one behind for ever."""
    tree = PrefixTree(1, LowerTiers())
    kv = KVManager(num_pages=4, page_size=1)
    kv.tree = tree
    for _ in range(1000):
        leave(kv, run_request(kv, [1, 2]), [1, 2])
    assert tree.num_offers <= 100


def test_clearing_the_eviction_queue_forgets_no_leaf() -> None:
    kv = KVManager(num_pages=8, page_size=1)
    for token in range(4):
        leave(kv, run_request(kv, [token]), [token])
    for _ in range(1000):
        leave(kv, run_request(kv, [5, 6]), [5, 6])
    assert kv.flush() == 6
    assert kv.pool.num_free == 8


def test_clearing_the_eviction_queue_keeps_its_order() -> None:
    """Leaves used in any order, the queue cleared in between many times: still the one used longest ago goes first."""
    kv = KVManager(num_pages=40, page_size=1)
    draw = random.Random(7)
    latest: list[int] = []
    for _ in range(600):
        token = draw.randrange(40)
        kv.acquire([], "").release(tokens_of(1), 0)  # time passes without anything to offer
        lease = kv.acquire(kv.match(tokens_of(token, 0), 1, ""), "")
        lease.extend(1)
        lease.release(tokens_of(token), 1)
        latest = [other for other in latest if other != token] + [token]
    while latest:
        kv.pool.give(kv.tree.evict(1))
        latest.pop(0)
        assert sorted(array("i", node.key)[0] for node in kv.tree.nodes()) == sorted(latest)


def test_caching_off_finds_nothing() -> None:
    kv = KVManager(num_pages=4, page_size=1, prefix_caching=False)
    leave(kv, run_request(kv, [1, 2, 3]), [1, 2, 3])
    assert kv.match(tokens_of(1, 2, 3), 3, "") == []
    assert kv.pool.num_free == 4


def test_a_page_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size must be at least 1, got 0"):
        KVManager(num_pages=1, page_size=0)
