"""Digests of pages are those that an engine gives its own, so another process can name what an engine holds."""

from __future__ import annotations

from array import array

from sluice.kv.digests import page_digests
from sluice.kv.manager import KVManager
from sluice.types import TierLimits


def digests_of_stores(tokens: list[int], page_size: int, extra_key: str) -> list[bytes]:
    """The names under which an engine stores the pages of a prompt."""
    kv = KVManager(num_pages=8, page_size=page_size, tiers=TierLimits(disk_pages=8))
    known = array("i", tokens)
    lease = kv.acquire([], extra_key)
    lease.extend(len(tokens))
    lease.release(known, len(tokens))
    return [copy.key.digest for copy in kv.tiers.take_copies()[0] if copy.key is not None]


def test_digests_are_those_of_an_engine() -> None:
    """A router whose names differ would find no page anywhere, and route every request as a new one."""
    tokens = [5, 1, 70_000, 0, 5, 1, 9]
    for extra_key in ("", "tenant"):
        assert list(page_digests(tokens, 2, extra_key)) == digests_of_stores(tokens, 2, extra_key)


def test_only_full_pages_have_digests() -> None:
    assert [len(list(page_digests(range(count), 3))) for count in (0, 2, 3, 5, 6)] == [0, 0, 1, 1, 2]


def test_a_digest_covers_all_before_it() -> None:
    """Pages that are alike behind beginnings or in namespaces that are not hold different KV."""
    prompts = (([1, 1, 5, 5], ""), ([2, 2, 5, 5], ""), ([1, 1, 5, 5], "tenant"))
    assert len({digest for tokens, key in prompts for digest in page_digests(tokens, 2, key)}) == 6
