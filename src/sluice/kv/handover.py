"""Handover: a prompt whose pages one engine computed, and another one loads.

The pages are stored on the disk tier of the first engine, as all its pages are. The second one makes them nodes of its
prefix tree that are on a tier of its own, which holds nothing else (`write_policy` never). A request that needs them
loads them as it would load its own, under the checksums of the stores: a page that cannot be read, or is not what was
stored, is computed again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from sluice.kv.manager import KVManager
from sluice.kv.nodes import NOWHERE, Node, key_behind, tokens_of
from sluice.kv.tiers import Tiers
from sluice.types import PageKey, StoredPage, Tier


class Placed(NamedTuple):
    """A page that was taken over."""

    page: int
    """The page of this engine's tier that it is copied to."""
    stored: StoredPage
    """The page as the other engine has stored it."""


def stored_pages(kv: KVManager, tokens: Sequence[int], extra_key: str) -> tuple[StoredPage, ...]:
    """Return the full pages of a context that are on the disk, from its beginning on, up to the first that is not.

    Raises:
        ValueError: a token id that is none.
    """
    if not isinstance(kv.tiers, Tiers) or Tier.DISK not in kv.tiers.order:
        return ()
    disk = kv.tiers.pools[kv.tiers.order.index(Tier.DISK)]
    nodes: list[Node] = []
    kv.tree.match_any(nodes, _packed(tokens), len(tokens), extra_key)
    found: list[StoredPage] = []
    parent = b""
    for node in nodes:
        page = NOWHERE if node.copies is None or node.copies.is_suspect else node.copies.pages[disk.level]
        if page == NOWHERE:
            break
        key = PageKey(node.digest, parent, tokens_of(node.key), extra_key)
        found.append(StoredPage(page, key, disk.checksums[page]))
        parent = node.digest
    return tuple(found)


class Taking:
    """Makes the pages of another engine nodes on the disk tier, some at each call, those used least recently giving
    way. Pages that have to give way themselves between two calls end it.

    Args:
        pages: of one context, from its beginning on. What does not fit on the tier is left out.

    Raises:
        ValueError: there is no such tier, or the pages are not those of one context, in order, as their digests say.
    """

    def __init__(self, kv: KVManager, pages: Sequence[StoredPage]) -> None:
        if not isinstance(kv.tiers, Tiers) or Tier.DISK not in kv.tiers.order or not kv.tree.enabled:
            raise ValueError("this engine takes no pages of others")
        self._tiers = kv.tiers
        self._page_size = kv.page_size
        self._left = zip(_keys_of(pages, kv.page_size), pages, strict=True)
        self._path: list[Node] = []
        self.is_over = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the context, from the beginning on, whose pages are on the tier now."""
        return len(self._path) * self._page_size

    def go_on(self, most: int) -> list[Placed]:
        """Take at most so many pages more, and return those of them that were not on the tier."""
        placed: list[Placed] = []
        path, count = self._path, len(self._path)
        while path and path[-1].has_left:
            path.pop()
        if len(path) < count:
            self.is_over = True
            return placed
        held = max(0, count - 1)  # with the last page, those before it stay
        self._tiers.read(path[held:], Tier.DISK)
        for key, stored in islice(self._left, most):
            page = _placed(self._tiers, path, key, stored)
            if page is None:
                break
            if page != NOWHERE:
                placed.append(Placed(page, stored))
        self._tiers.unread(path[held:])  # until here they are read, so that none gives way to the next one
        self.is_over = len(path) < count + most
        return placed


def _keys_of(pages: Sequence[StoredPage], size: int) -> list[bytes]:
    """Return the tokens of offered pages as the tree has them.

    Raises:
        ValueError: a page is not what its digest says, or does not follow the one before it. It would answer prompts of
            other tokens.
    """
    keys: list[bytes] = []
    parent, extra_key = b"", pages[0].key.extra_key if pages else ""
    for stored in pages:
        if len(stored.key.token_ids) != size:
            raise ValueError(f"a page of {len(stored.key.token_ids)} tokens, pages here have {size}")
        keys.append(_packed(stored.key.token_ids).tobytes())
        if stored.key != key_behind(parent, keys[-1], extra_key):
            raise ValueError(f"page {stored.page} of the offer is not the one that follows those before it")
        parent = stored.key.digest
    return keys


def _packed(tokens: Sequence[int]) -> array[int]:
    try:
        return array("i", tokens)
    except OverflowError as error:
        raise ValueError("a token id that has more than 32 bits") from error


def _placed(tiers: Tiers, path: list[Node], key: bytes, stored: StoredPage) -> int | None:
    """Lengthen a path that is read by the node of a page. Returns the page of the tier that it was given, `NOWHERE` if
    it was there, None if there is no room."""
    extra_key = stored.key.extra_key
    node = tiers.behind(path, key, extra_key, Tier.DISK)
    if node is not None:
        tiers.read([node], Tier.DISK)
        path.append(node)
        return NOWHERE
    taken = tiers.take(Tier.DISK, 1)
    if taken is None:
        return None
    tiers.pools[tiers.order.index(Tier.DISK)].checksums[taken[0]] = stored.checksum
    node = tiers.publish(path, key, extra_key, Tier.DISK, taken[0])
    if node is None:
        tiers.give(Tier.DISK, taken)
        return None
    path.append(node)
    return taken[0]
