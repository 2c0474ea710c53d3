"""What an engine takes of the pages that another one offers, and what it refuses."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise

import pytest

from sluice.kv.handover import Taking, stored_pages
from sluice.kv.manager import KVManager
from sluice.kv.nodes import key_behind
from sluice.types import StoredPage, TierLimits

PROMPT = (1, 2, 3, 4, 5, 6)
"""Three pages of two tokens."""


def manager() -> KVManager:
    tiers = TierLimits(disk_pages=4, write_policy="never", load_back_pages=1)
    return KVManager(num_pages=4, page_size=2, tiers=tiers)


def offer_of(tokens: tuple[int, ...], extra_key: str = "") -> list[StoredPage]:
    found: list[StoredPage] = []
    for start, end in pairwise(range(0, len(tokens) + 1, 2)):
        parent = found[-1].key.digest if found else b""
        key = array("i", tokens[start:end]).tobytes()
        found.append(StoredPage(7 + start, key_behind(parent, key, extra_key), 99))
    return found


def changed(offer: list[StoredPage], index: int, **change: object) -> list[StoredPage]:
    """The offer with a page whose name differs."""
    stored = offer[index]
    offer[index] = stored._replace(key=stored.key._replace(**change))
    return offer


@pytest.mark.parametrize("extra_key", ["", "tenant"])
def test_a_whole_prompt_is_taken_and_offered_again(extra_key: str) -> None:
    kv = manager()
    taking = Taking(kv, offer_of(PROMPT, extra_key))
    assert [placed.stored.page for placed in taking.go_on(2)] == [7, 9]
    assert (taking.num_tokens, taking.is_over) == (4, False)
    assert [placed.stored.page for placed in taking.go_on(2)] == [11]
    assert (taking.num_tokens, taking.is_over) == (6, True)
    assert [stored.key for stored in stored_pages(kv, PROMPT, extra_key)] == [
        stored.key for stored in offer_of(PROMPT, extra_key)
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda offer: [offer[0], offer[2]],
        lambda offer: offer[1:],
        lambda offer: [offer[0], offer[2], offer[1]],
        lambda offer: [offer[0], offer_of((9, 9, 3, 4))[1]],
        lambda offer: changed(offer, 1, token_ids=(9, 9)),
        lambda offer: changed(offer, 2, digest=b"other"),
        lambda offer: changed(offer, 1, parent=b""),
        lambda offer: changed(offer, 0, extra_key="tenant"),
        lambda offer: changed(offer, 1, extra_key="tenant"),
    ],
    ids=["gap", "no beginning", "order", "other prompt", "tokens", "digest", "parent", "namespace", "second namespace"],
)
def test_pages_that_do_not_follow_one_another_are_refused(
    spoil: Callable[[list[StoredPage]], list[StoredPage]],
) -> None:
    """The KV of some tokens would answer for others, or for another tenant's."""
    kv = manager()
    with pytest.raises(ValueError, match=r"page \d+ of the offer is not the one that follows"):
        Taking(kv, spoil(offer_of(PROMPT)))
    assert list(kv.tree.nodes()) == []
    assert kv.tiers.uses()[0].used == 0


def test_token_ids_that_are_none_are_refused() -> None:
    """An error of another kind ends the engine."""
    with pytest.raises(ValueError, match="more than 32 bits"):
        Taking(manager(), changed(offer_of(PROMPT), 1, token_ids=(3, 1 << 31)))
    with pytest.raises(ValueError, match="more than 32 bits"):
        stored_pages(manager(), (1, 1 << 31), "")
