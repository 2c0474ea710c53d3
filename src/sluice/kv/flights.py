"""Copies between the device and the tiers behind it, on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sluice.kv.prefix import Node
from sluice.types import PageKey


@dataclass(slots=True, eq=False)
class Load:
    """Nodes on their way to the device, in the tree's order, and the pages they are to have.

    Nobody else holds the pages. Whoever asked for it may leave; then what was not begun is given up.
    """

    nodes: list[Node]
    pages: list[int]
    sources: list[tuple[int, int]]
    """Of each node the tier, by its place, and the page there."""
    begun: int = 0
    """Copies planned, of the first ones."""
    open: int = 0
    """Of these, how many have not ended."""
    failed: set[int] = field(default_factory=set)
    """Which of them failed."""
    is_over: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A copy of a node on its way down."""

    node: Node
    tier: int
    page: int


class StoreOwner(Protocol):
    """A request that keeps its pages on a tier, as far as the stores of these pages concern it."""

    sending: set[int]
    """Pages of its context whose stores were planned and have not ended."""
    is_closed: bool

    def ended(self, index: int, error: str | None) -> None:
        """Note that the store of a page has ended."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class OffloadStore:
    """A copy of an offloaded request's page on its way down."""

    owner: StoreOwner
    index: int
    """The page's place in the request's context."""
    source: int
    """Page of the device."""
    place: int
    """The tier's place in the order of tiers."""
    page: int
    """Page of the tier."""
    key: PageKey | None


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPage:
    """One copy of a load."""

    load: Load
    index: int
