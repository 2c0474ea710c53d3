"""ShadowAdapters: adapters without weights, some of which take their time to be loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sluice.engine.messages import AdapterLoaded, AdapterRead, LoadAdapter
from sluice.types import AdapterSwap


class ShadowAdapters:
    """Loads adapters that are only names (`engine.protocols.Adapters`).

    Args:
        post: receives what becomes of those that take their time, when a test calls `work`.
        is_late: called with a digest: whether loading takes its time.
        broken: digests of adapters that cannot be loaded.
        places: most that are loaded at once; None: that is not checked.
    """

    def __init__(
        self,
        post: Callable[[AdapterLoaded], None],
        is_late: Callable[[str], bool] = lambda adapter: False,
        broken: Collection[str] = (),
        places: int | None = None,
    ) -> None:
        self._post = post
        self._is_late = is_late
        self._broken = broken
        self._places = places
        self._late: list[AdapterLoaded] = []
        self.placed: set[str] = set()
        """Adapters that are loaded, or on their way."""
        self.swaps: list[AdapterSwap] = []
        """All that were asked for."""

    def problem(self, adapter: str) -> str | None:
        return None

    def name_of(self, adapter: str) -> str:
        return adapter

    def read(self, asked: LoadAdapter) -> None:
        """Return: all are read."""

    def answer(self, read: AdapterRead) -> None:
        """Return: it was not asked."""

    def forget(self, adapter: str) -> None:
        """Return: nothing is kept."""

    def swap(self, swap: AdapterSwap) -> AdapterLoaded | None:
        self.swaps.append(swap)
        if swap.instead_of:
            self.placed.remove(swap.instead_of)
        error = f"the adapter {swap.adapter} is broken" if swap.adapter in self._broken else None
        if error is None:
            assert swap.adapter not in self.placed, f"{swap.adapter} is loaded already"
            self.placed.add(swap.adapter)
        assert self._places is None or len(self.placed) <= self._places, f"{self.placed} in {self._places} places"
        loaded = AdapterLoaded(swap.adapter, error)
        if self._is_late(swap.adapter):
            self._late.append(loaded)
            return None
        return loaded

    def loaded(self, adapter: str) -> None:
        """Return: there are no other ranks."""

    def work(self) -> None:
        """Report the adapters that took their time."""
        late, self._late = self._late, []
        for loaded in late:
            self._post(loaded)

    def close(self) -> None:
        """Return: nothing is open."""
