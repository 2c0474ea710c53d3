"""LowerTiers: the tiers behind the device, as the KV manager and the prefix tree see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sluice.kv.flights import PageLoad, StoreOwner
from sluice.kv.nodes import Node
from sluice.kv.prefix_cache import PrefixTree
from sluice.types import CopyDone, PageCopy, PageKey, StoredPage, Tier, TierUse


class LowerTiers:
    """No tiers behind the device: what is evicted is lost. `Tiers` overrides every method."""

    @property
    def order(self) -> tuple[Tier, ...]:
        """The tiers there are, fastest first."""
        return ()

    @property
    def has_work(self) -> bool:
        """Whether a plan is to copy or to drop something, now or when copies have ended."""
        return False

    @property
    def num_in_flight(self) -> int:
        """Copies that were planned and have not ended."""
        return 0

    @property
    def num_loading(self) -> int:
        """Pages of the device that loads are to fill."""
        return 0

    # For the prefix tree

    def published(self, node: Node) -> None:
        """Note that a node has a page of the device now."""

    def keeps(self, node: Node) -> bool:
        """Return whether a node whose page is about to be taken is on a tier, or soon will be."""
        return False

    def removed(self, node: Node) -> None:
        """Note that a node has left the tree."""

    def suspected(self, node: Node) -> None:
        """Note that a node's copies may not be what was stored. It is on the device."""

    # For the cached prefixes of resident requests

    def attach(self, tree: PrefixTree) -> None:
        """Set the tree whose nodes are here; called once."""

    def used(self, path: Sequence[Node]) -> None:
        """Note that these nodes were taken from the cache."""

    def loadable(self, nodes: Iterator[Node]) -> list[Node]:
        """Return the first of these nodes, as many as can be loaded; none if they are too few to be worth it. None of
        them is being loaded: a request that needs such a page waits for it (`is_loading`)."""
        return []

    def is_loading(self, nodes: Iterator[Node]) -> bool:
        """Return whether the first of these nodes is on its way to the device."""
        return False

    def hold(self, nodes: Sequence[Node]) -> None:
        """Keep the copies of nodes that are about to be loaded."""
        assert not nodes, f"{len(nodes)} nodes to load, but they lie on no tier"

    def load(self, nodes: list[Node], pages: list[int]) -> PageLoad:
        """Begin to load held nodes into pages that have no other owner."""
        raise AssertionError(f"{len(nodes)} nodes to load, but they lie on no tier")

    def cancel(self, load: PageLoad) -> list[int]:
        """Give up what a load has not begun: its request has left. Returns pages that are free now."""
        raise AssertionError(f"{load} was not started")

    def take_copies(self) -> tuple[tuple[PageCopy, ...], tuple[int, ...]]:
        """Return what the plan that was just made is to copy, and which pages of the disk it is to forget, as far as
        the budgets let it."""
        return (), ()

    def forget_again(self, dropped: Sequence[int]) -> None:
        """Let the next plan forget these pages: the plan that was to do it never ran."""
        assert not dropped, f"pages {dropped} of no disk"

    def ended(self, done: CopyDone) -> tuple[PageLoad | None, list[int]]:
        """Note that a copy has ended. Returns the load that is over with it, if there is one, and pages that are free
        now."""
        raise AssertionError(f"{done} was not planned")

    def forget_flights(self) -> list[int]:
        """Give up all that is in flight: the runner is gone. Returns pages that are free now."""
        return []

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Grow the tree from what the disk held when it was opened. Pages that follow no other, or are there twice, are
        forgotten.

        Returns:
            How many pages were taken over.

        Raises:
            ValueError: there is no disk, or a page is not one of its pages, or holds another number of tokens.
        """
        if pages:
            raise ValueError(f"{len(pages)} pages of a disk tier, but there is none")
        return 0

    def uses(self) -> tuple[TierUse, ...]:
        """Return how full each tier is, and what went there and came back."""
        return ()

    # For offloaded requests

    def pages_of(self, tier: Tier) -> int:
        """Return how many pages a tier has."""
        return 0

    def num_takeable(self, tier: Tier) -> int:
        """Return the pages of a tier that no offloaded request has taken for its own."""
        return 0

    def take(self, tier: Tier, needed: int, at_most: int | None = None) -> list[int] | None:
        """Take pages of a tier for an offloaded request, evicting cached ones.

        Args:
            needed: pages that the request needs.
            at_most: pages that are taken now, no more than are needed; None: all of them.

        Returns:
            None if there are not as many as are needed.
        """
        return None

    def give(self, tier: Tier, pages: Iterable[int]) -> None:
        """Give pages back that were taken with `take`."""
        raise AssertionError(f"pages {pages} are not in use")

    def store_offloaded(
        self, owner: StoreOwner, index: int, source: int, tier: Tier, page: int, key: PageKey | None
    ) -> None:
        """Copy a page of the device to an offloaded request's page on a tier, as soon as the budgets let it.

        Args:
            index: the page's index in the request's context.
            source: page of the device.
            page: page of the tier.
            key: None: it is not to be found after a restart.
        """
        raise AssertionError(f"there is no tier for page {index} of {owner}")

    def readable(self, nodes: Iterator[Node], tier: Tier) -> list[Node]:
        """Return the first of these nodes, as many as are on a tier."""
        return []

    def read(self, nodes: Sequence[Node], tier: Tier) -> list[int]:
        """Keep the copies of nodes that an offloaded request reads, until `unread`. Returns their pages."""
        assert not nodes, f"{len(nodes)} nodes to read from nowhere"
        return []

    def unread(self, nodes: Sequence[Node]) -> None:
        """Note that an offloaded request reads these nodes no more."""
        assert not nodes, f"{len(nodes)} nodes were never read"

    def failed_to_read(self, tier: Tier, page: int) -> None:
        """Count a page that an offloaded request could not read. It is retired once it is given back: it may be bad
        for good."""
        raise AssertionError(f"nothing is read from {tier}")

    def publish(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier, page: int) -> Node | None:
        """Make an offloaded request's page the node behind a path that it reads. It reads the node from now on.

        Returns:
            None if the path has left the tree, or a node of these tokens is on the tier already.
        """
        return None

    def behind(self, path: Sequence[Node], key: bytes, extra_key: str, tier: Tier) -> Node | None:
        """Return the node of these tokens behind a path that is read, if it is on the tier."""
        return None
