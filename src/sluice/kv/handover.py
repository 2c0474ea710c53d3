"""Handover: a prompt whose pages one engine computed, and another one loads.

The pages are stored on the disk tier of the first engine, as all its pages are. The second one makes them nodes of its
prefix tree that lie on a tier of its own, which holds nothing else (`write_policy` never). A request that needs them
loads them as it would load its own, under the checksums of the stores: a page that cannot be read, or is not what was
stored, is computed again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from sluice.kv.manager import KVManager
from sluice.kv.nodes import NOWHERE, Node, key_behind, tokens_of
from sluice.kv.tiers import Tiers
from sluice.types import PageKey, StoredPage, Tier


class Placed(NamedTuple):
    """A page that was taken over."""

    page: int
    """Its page on this engine's tier."""
    stored: StoredPage
    """As the other engine has stored it."""


class Taken(NamedTuple):
    """What was taken over of a context."""

    num_tokens: int
    """Tokens, from the beginning on, whose pages lie on the tier now."""
    placed: tuple[Placed, ...]
    """Those that were not there before."""


def stored_pages(kv: KVManager, tokens: Sequence[int], extra_key: str) -> tuple[StoredPage, ...]:
    """Return the full pages of a context that lie on the disk, from its beginning on, up to the first that does not.

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


def take_pages(kv: KVManager, pages: Sequence[StoredPage]) -> Taken:
    """Make the pages of another engine nodes on the disk tier, those used least recently giving way.

    Args:
        pages: of one context, from its beginning on. What does not fit on the tier is left out.

    Raises:
        ValueError: there is no such tier, or the pages are not those of one context, in order, as their digests say.
            None of them is taken then.
    """
    tiers, size = kv.tiers, kv.page_size
    if not isinstance(tiers, Tiers) or Tier.DISK not in tiers.order or not kv.tree.enabled:
        raise ValueError("this engine takes no pages of others")
    keys = _keys_of(pages, size)
    path: list[Node] = []
    placed: list[Placed] = []
    for key, stored in zip(keys, pages, strict=True):
        page = _placed(tiers, path, key, stored)
        if page is None:
            break
        if page != NOWHERE:
            placed.append(Placed(page, stored))
    tiers.unread(path)  # until here they are read, so that none gives way to the next one
    return Taken(len(path) * size, tuple(placed))


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
