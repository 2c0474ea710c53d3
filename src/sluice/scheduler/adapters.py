"""AdapterPlaces: which adapters are loaded beside the model, and which requests wait until theirs is.

There are `max_loras` places. A request whose adapter has none is HELD, and comes to the waiting queue when its adapter
is loaded. From then on it is a *user* of the place until it is gone, also while it waits and after a preemption: so
all that is planned finds its adapter loaded, and no pass has to know of adapters.

    add -> HELD -> WAITING -> ...        at once WAITING if the adapter is loaded

A place that has no user is given to the adapter of the first request that is held, in the order of the queue. That no
adapter keeps its place for ever, as many places as are waited for are *closing*: they take no user more, so that their
last one leaves. Those with the fewest users close. When an adapter gets a place, all requests that are held for it
become its users, however many places are closing: with one place, two adapters take turns.

Loading takes its time, beside the steps. It is asked for by `take_swaps`, and ends with a call of `loaded`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

from sluice.scheduler.request import Request
from sluice.types import AdapterSwap, AdapterUse

Key = tuple[bool, int, bool, int, int]
"""The rank of a waiting request (`queue.Rank`)."""


class AdapterPlaces:
    """The places for adapters of one engine, and who wants them.

    Args:
        num_places: adapters that are loaded at the same time; 0: requests have none.
        rank: returns the place of a request in the order of the queue; smaller goes first.
    """

    def __init__(self, num_places: int, rank: Callable[[Request], Key]) -> None:
        self.num_places = num_places
        self.requests: dict[int, Request] = {}
        """The requests that are held."""
        self._rank = rank
        self._held: dict[str, list[Request]] = {}
        """The same by adapter, in order."""
        self.placed: dict[str, int] = {}
        """Adapters that have a place, with the number of their users, the one that was used longest ago first."""
        self.loading: set[str] = set()
        """Adapters among these that are not loaded yet."""
        self._closing: list[str] = []
        """Adapters among these that get no users more."""
        self._swaps: list[AdapterSwap] = []

    def enter(self, request: Request) -> list[Request]:
        """Take a request that has an adapter. Returns the requests that come to the queue now: it, or none."""
        self.requests[request.id] = request
        insort(self._held.setdefault(request.submit.adapter, []), request, key=self._rank)
        return self._settle()

    def withdraw(self, request: Request) -> list[Request]:
        """Forget a request that is held. Returns the requests that come to the queue now."""
        self._pop(request)
        return self._settle()

    def leave(self, request: Request) -> list[Request]:
        """Forget a user, which is gone. Returns the requests that come to the queue now."""
        self.placed[request.submit.adapter] -= 1
        return self._settle()

    def loaded(self, adapter: str) -> list[Request]:
        """Note that an adapter is loaded. Returns the requests that come to the queue now."""
        self.loading.discard(adapter)
        return self._settle()

    def failed(self, adapter: str) -> tuple[list[Request], list[Request]]:
        """Note that an adapter cannot be loaded. Forgets the requests that are held for it.

        Returns:
            These requests, and those that come to the queue now.
        """
        if adapter in self.loading:
            self.loading.remove(adapter)
            del self.placed[adapter]
        lost = list(self._held.get(adapter, ()))
        for request in lost:
            self._pop(request)
        return lost, self._settle()

    def take_swaps(self) -> Sequence[AdapterSwap]:
        """Return the adapters that are to be loaded, in order. Each is returned once."""
        swaps, self._swaps = self._swaps, []
        return swaps

    def uses(self) -> tuple[AdapterUse, ...]:
        """Return who uses and who awaits each adapter."""
        adapters = {**self.placed, **dict.fromkeys(self._held.keys() - self.placed.keys(), 0)}
        return tuple(AdapterUse(name, users, len(self._held.get(name, ()))) for name, users in adapters.items())

    def _settle(self) -> list[Request]:
        """Give places to those who are first, and return the requests that come to the queue now."""
        passed: list[Request] = []
        while (first := self._first()) is not None and first.submit.adapter in self._closing:
            passed += self._pass(first.submit.adapter, [first])  # those that the place would close for come later
        for adapter in [each for each in self._held if self._is_open(each)]:
            passed += self._pass(adapter, self._held[adapter])
        for adapter in sorted(self._held, key=lambda name: self._rank(self._held[name][0])):
            if adapter not in self.placed and not self._find_place(adapter):
                break
        self._close_some()
        return passed

    def _first(self) -> Request | None:
        """Return the held request that comes first."""
        return min((requests[0] for requests in self._held.values()), key=self._rank, default=None)

    def _is_open(self, adapter: str) -> bool:
        return adapter in self.placed and adapter not in self.loading and adapter not in self._closing

    def _find_place(self, adapter: str) -> bool:
        """Give an adapter a place, if there is one without a user."""
        instead_of = ""
        if len(self.placed) >= self.num_places:
            idle = (name for name, users in self.placed.items() if not users and name not in self.loading)
            found = next(idle, None)
            if found is None:
                return False
            instead_of = found
            del self.placed[found]
            self._closing = [name for name in self._closing if name != found]
        self.placed[adapter] = 0
        self.loading.add(adapter)
        self._swaps.append(AdapterSwap(adapter, instead_of))
        return True

    def _pass(self, adapter: str, requests: Sequence[Request]) -> list[Request]:
        """Let held requests become users of their adapter."""
        passed = list(requests)
        for request in passed:
            self._pop(request)
        self.placed[adapter] = self.placed.pop(adapter) + len(passed)  # it is the one that was used last
        return passed

    def _pop(self, request: Request) -> None:
        adapter = request.submit.adapter
        del self.requests[request.id]
        self._held[adapter].remove(request)
        if not self._held[adapter]:
            del self._held[adapter]

    def _close_some(self) -> None:
        """Let as many places close as adapters wait for one."""
        wanted = sum(adapter not in self.placed for adapter in self._held)
        self._closing = self._closing[:wanted]
        while len(self._closing) < wanted:
            others = [name for name in self.placed if name not in self._closing and name not in self.loading]
            if not others:
                return
            self._closing.append(min(others, key=self.placed.__getitem__))
