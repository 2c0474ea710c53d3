"""PrefixCache: what the KV manager needs of a prefix cache, and the cache that holds nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from sluice.kv.prefix import Node


class PrefixCache(Protocol):
    """What the manager asks of a prefix cache."""

    @property
    def num_pages(self) -> int:
        """Pages the cache owns."""
        ...

    @property
    def num_evictable(self) -> int:
        """Of those, pages no path holds."""
        ...

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        """Bring `path`, a path found before or empty, up to date: the longest one of whole pages equal to the beginning
        of `tokens`, at most `limit` tokens."""
        ...

    def lock(self, path: Sequence[Node]) -> None:
        """Hold every node of a path."""
        ...

    def unlock(self, path: Sequence[Node]) -> None:
        """Let a held path go."""
        ...

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        """Lengthen a held path, in place, to at most `count` pages."""
        ...

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        """Keep what is worth keeping of a leaving request's private pages; return the others."""
        ...

    def forget(self, path: Sequence[Node]) -> list[int]:
        """Give up what of a path that was just let go nobody else holds, from its end."""
        ...

    def forget_below(self, path: Sequence[Node]) -> list[int]:
        """Somebody read a path on a tier, and what is there may be what was wrong with it: drop what nobody holds on
        the device, with all that follows it, and the copies of what somebody holds. Returns pages of the device."""
        ...

    def evict(self, count: int) -> list[int]:
        """Give up `count` pages that nobody holds."""
        ...

    def match_below(self, path: Sequence[Node], tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        """What follows a path that was just matched and is not on the device, in order."""
        ...

    def match_any(self, tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        """The nodes equal to the beginning of `tokens`, at most `limit` tokens, wherever they lie."""
        ...

    def clear(self) -> tuple[int, list[int]]:
        """Forget every node that nobody holds, on all tiers. Returns how many, and their pages."""
        ...

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children."""
        ...


class NoPrefix:
    """Prefix caching off, as an object: nothing is ever found, held or published."""

    num_pages = 0
    num_evictable = 0

    def match(self, path: list[Node], tokens: array[int], limit: int, extra_key: str) -> None:
        pass

    def lock(self, path: Sequence[Node]) -> None:
        pass

    def unlock(self, path: Sequence[Node]) -> None:
        pass

    def publish(self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str) -> None:
        pass

    def adopt(
        self, path: list[Node], tokens: array[int], pages: Sequence[int], count: int, extra_key: str
    ) -> list[int]:
        return list(pages)

    def forget(self, path: Sequence[Node]) -> list[int]:
        return []

    def forget_below(self, path: Sequence[Node]) -> list[int]:
        return []

    def evict(self, count: int) -> list[int]:
        assert count == 0, f"nothing to evict, {count} pages wanted"
        return []

    def match_below(self, path: Sequence[Node], tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        return iter(())

    def match_any(self, tokens: array[int], limit: int, extra_key: str) -> Iterator[Node]:
        return iter(())

    def clear(self) -> tuple[int, list[int]]:
        return 0, []

    def nodes(self) -> Iterator[Node]:
        return iter(())
