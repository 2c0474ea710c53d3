"""What the tree and the manager ask of the tiers behind the device, and what there is without any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from sluice.kv.flights import Load, StoreOwner
from sluice.kv.prefix import Node, PrefixTree
from sluice.types import CopyDone, PageCopy, PageKey, StoredPage, Tier, TierUse


class LowerTiers(Protocol):
    """What the tree and the manager ask of the tiers behind the device."""

    @property
    def order(self) -> tuple[Tier, ...]:
        """Those there are, fastest first."""
        ...

    @property
    def has_work(self) -> bool:
        """Something can be told to the runner, now or when copies have ended."""
        ...

    @property
    def num_in_flight(self) -> int:
        """Copies that were planned and have not ended."""
        ...

    @property
    def num_loading(self) -> int:
        """Pages of the device that loads are to fill."""
        ...

    def published(self, node: Node) -> None:
        """It has a page now."""
        ...

    def keeps(self, node: Node) -> bool:
        """Its page is about to be taken. True: it lies on a tier, or soon will."""
        ...

    def removed(self, node: Node) -> None:
        """It has left the tree."""
        ...

    def suspected(self, node: Node) -> None:
        """Its copies may not be what was stored. It is on the device."""
        ...

    def attach(self, tree: PrefixTree) -> None:
        """The tree whose nodes lie here; once."""
        ...

    def used(self, path: Sequence[Node]) -> None:
        """These nodes were taken from the cache."""
        ...

    def loadable(self, nodes: Iterator[Node]) -> list[Node]:
        """As many of these nodes, from the first one on, as can be loaded; none if they are too few to bother. None of
        them is being loaded: who wants such a page waits for it (`is_loading`)."""
        ...

    def is_loading(self, nodes: Iterator[Node]) -> bool:
        """The first of these nodes is on its way to the device."""
        ...

    def hold(self, nodes: Sequence[Node]) -> None:
        """Nodes that are about to be loaded: nobody may give them up."""
        ...

    def load(self, nodes: list[Node], pages: list[int]) -> Load:
        """Bring held nodes to pages that nobody else has."""
        ...

    def cancel(self, load: Load) -> list[int]:
        """Nobody waits for it any more: what was not begun is left. Returns pages that are free now."""
        ...

    def take_copies(self) -> tuple[tuple[PageCopy, ...], tuple[int, ...]]:
        """What the plan that was just made is to copy, and to forget on the disk, as far as the budgets let it."""
        ...

    def forget_again(self, dropped: Sequence[int]) -> None:
        """A plan that was to forget these never ran: the next one does."""
        ...

    def ended(self, done: CopyDone) -> tuple[Load | None, list[int]]:
        """A copy ended. Returns the load that is over with it, if one is, and pages that are free now."""
        ...

    def forget_flights(self) -> list[int]:
        """The runner is gone, and with it all that was in flight. Returns pages that are free now."""
        ...

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Grow the tree from what the disk held when it was opened. Returns how many pages were taken over.

        Raises:
            ValueError: pages of a tier that is not there, or that cannot be its.
        """
        ...

    def pages_of(self, tier: Tier) -> int:
        """How many pages a tier has."""
        ...

    def take(self, tier: Tier, count: int) -> list[int] | None:
        """Pages of a tier for a request that keeps its KV there: all of them, or None. Others' give way."""
        ...

    def give(self, tier: Tier, pages: Iterable[int]) -> None:
        """Give pages of `take` back."""
        ...

    def store_offloaded(
        self, owner: StoreOwner, index: int, source: int, tier: Tier, page: int, key: PageKey | None
    ) -> None:
        """Copy a page of the device to where a offloaded request keeps it, as soon as the budgets let it."""
        ...

    def readable(self, nodes: Iterator[Node], tier: Tier) -> list[Node]:
        """As many of these nodes, from the first one on, as lie on a tier."""
        ...

    def read(self, nodes: Sequence[Node], tier: Tier) -> list[int]:
        """Somebody attends to these nodes where they lie, until `unread`. Returns their pages."""
        ...

    def unread(self, nodes: Sequence[Node]) -> None:
        """One of those who attend to these nodes does so no more."""
        ...

    def publish(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier, page: int) -> Node | None:
        """Make a private page the node behind a path that is read; whoever had it reads it from now on."""
        ...

    def behind(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier) -> Node | None:
        """The node of these tokens behind a path that is read, if it lies on the tier."""
        ...

    def uses(self) -> tuple[TierUse, ...]:
        """How full each tier is, and what went there and came back."""
        ...


class NoTiers:
    """Nothing behind the device, as an object: what is evicted is lost."""

    def pages_of(self, tier: Tier) -> int:
        return 0

    def take(self, tier: Tier, count: int) -> list[int] | None:
        return None

    def give(self, tier: Tier, pages: Iterable[int]) -> None:
        raise AssertionError("nobody took these")

    def store_offloaded(
        self, owner: StoreOwner, index: int, source: int, tier: Tier, page: int, key: PageKey | None
    ) -> None:
        raise AssertionError(f"page {index} of {owner} has nowhere to go")

    def readable(self, nodes: Iterator[Node], tier: Tier) -> list[Node]:
        return []

    def read(self, nodes: Sequence[Node], tier: Tier) -> list[int]:
        assert not nodes, f"{len(nodes)} nodes to read from nowhere"
        return []

    def unread(self, nodes: Sequence[Node]) -> None:
        assert not nodes, f"{len(nodes)} nodes to read from nowhere"

    def publish(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier, page: int) -> Node | None:
        return None

    def behind(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier) -> Node | None:
        return None

    order = ()
    has_work = False
    num_in_flight = 0
    num_loading = 0

    def published(self, node: Node) -> None:
        pass

    def keeps(self, node: Node) -> bool:
        return False

    def suspected(self, node: Node) -> None:
        pass

    def removed(self, node: Node) -> None:
        pass

    def attach(self, tree: PrefixTree) -> None:
        pass

    def used(self, path: Sequence[Node]) -> None:
        pass

    def loadable(self, nodes: Iterator[Node]) -> list[Node]:
        return []

    def is_loading(self, nodes: Iterator[Node]) -> bool:
        return False

    def hold(self, nodes: Sequence[Node]) -> None:
        assert not nodes, f"{len(nodes)} nodes to load from nowhere"

    def load(self, nodes: list[Node], pages: list[int]) -> Load:
        raise AssertionError(f"{len(nodes)} nodes to load from nowhere")

    def cancel(self, load: Load) -> list[int]:
        raise AssertionError(f"nobody began {load}")

    def take_copies(self) -> tuple[tuple[PageCopy, ...], tuple[int, ...]]:
        return (), ()

    def forget_again(self, dropped: Sequence[int]) -> None:
        assert not dropped, f"{dropped} lay nowhere"

    def ended(self, done: CopyDone) -> tuple[Load | None, list[int]]:
        raise AssertionError(f"nobody planned {done}")

    def forget_flights(self) -> list[int]:
        return []

    def restore(self, pages: Sequence[StoredPage]) -> int:
        if pages:
            raise ValueError(f"{len(pages)} pages of a disk tier, but there is none")
        return 0

    def uses(self) -> tuple[TierUse, ...]:
        return ()
