"""Requests as a router sees them."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.kv.digests import page_digests


@dataclass(frozen=True)
class Asked:
    ids: tuple[int, ...]
    extra_key: str = ""
    session: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def digests(self, page_size: int) -> list[bytes]:
        return list(page_digests(self.ids, page_size, self.extra_key))


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(range(seed * 10_000, seed * 10_000 + length))
