"""The page pool."""

import pytest

from sluice.kv.pages import PagePool


def test_takes_and_gives_every_page_once() -> None:
    pool = PagePool(3)
    pages = pool.take(3)
    assert sorted(pages) == [0, 1, 2]
    assert pool.num_free == 0
    pool.give(pages[:2])
    assert pool.free_pages() == frozenset(pages[:2])


def test_the_page_given_back_last_is_taken_first() -> None:
    """A page freed too early is overwritten at once, so that the mistake shows."""
    pool = PagePool(4)
    first, second = pool.take(2)
    pool.give([first, second])
    assert pool.take(1) == [second]


def test_a_page_given_back_twice_is_refused() -> None:
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.give([page])
    with pytest.raises(AssertionError, match=f"page {page} is given back twice"):
        pool.give([page])


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(AssertionError, match="3 pages wanted, 2 free"):
        PagePool(2).take(3)


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one page, got 0"):
        PagePool(0)


def test_a_pool_may_have_a_single_page() -> None:
    assert PagePool(1).take(1) == [0]
