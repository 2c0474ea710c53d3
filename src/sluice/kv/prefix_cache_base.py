"""PrefixCache: what is kept of the KV of earlier requests, as the KV manager sees it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from sluice.kv.nodes import Node


class PrefixCache:
    """A prefix cache that keeps nothing. `PrefixTree` overrides every method."""

    enabled = False
    """Whether computed pages are kept for other requests."""

    @property
    def num_pages(self) -> int:
        """Pages of the device that the cache owns."""
        return 0

    @property
    def num_evictable(self) -> int:
        """Pages of the device that the cache owns and no path holds."""
        return 0

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        """Bring `path`, which was matched before or is empty, up to date: the longest path of whole pages on the device
        equal to the beginning of `tokens`, at most `limit` tokens."""

    def match_below(self, path: Sequence[Node], tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        """Yield the nodes that follow a path that was just matched and are not on the device, in order."""
        return iter(())

    def match_any(self, found: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        """Bring `found`, which was matched before or is empty, up to date: the nodes equal to the beginning of
        `tokens`, at most `limit` tokens, wherever they are."""

    def lock(self, path: Sequence[Node]) -> None:
        """Hold every node of a path."""

    def unlock(self, path: Sequence[Node]) -> None:
        """Release a path that was held."""

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        """Lengthen a held path, in place, to at most `count` pages: `pages[i]` holds the KV of the i-th page of
        `tokens`."""

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        """Keep the private pages of a leaving request, up to `count`, whose tokens are not cached yet.

        Returns:
            The private pages that are not kept.
        """
        return list(pages)

    def forget(self, path: Sequence[Node]) -> list[int]:
        """Remove the nodes of a path that was just unlocked, from its end, as far as no other path holds them. Returns
        their pages."""
        return []

    def forget_below(self, path: Sequence[Node]) -> list[int]:
        """Remove what a failed request has read on a tier: nodes that no path holds, with all that follows them, and
        the copies of nodes that a path holds. Returns pages of the device."""
        return []

    def forget_copies(self, node: Node) -> list[int]:
        """Forget the copies on the tiers of a node that cannot be read there; if it is not on the device, remove it
        with all that follows it. Returns pages of the device."""
        return []

    def evict(self, count: int) -> list[int]:
        """Give up `count` pages that no path holds."""
        assert count == 0, f"{count} pages to evict from an empty cache"
        return []

    def clear(self) -> tuple[int, list[int]]:
        """Remove every node that no path holds, on all tiers. Returns how many, and their pages of the device."""
        return 0, []

    def nodes(self) -> Iterator[Node]:
        """Yield every node, parents before children."""
        return iter(())
