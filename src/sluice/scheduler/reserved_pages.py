"""ReservedPages: what running requests may still take, beyond the pages that they hold."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState


class ReservedPages:
    """Counts the pages that are reserved, once a step, and keeps the count up to date."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._total: int | None = None

    def total(self) -> int:
        """Return the pages reserved for running requests beyond those they hold."""
        if self._total is None:
            self._total = sum(self.of(request) for request in self._state.started())
        return self._total

    def of(self, request: Request) -> int:
        """Return the pages reserved for a request with pages beyond those it holds."""
        assert request.lease is not None, f"request {request.id} runs without pages"
        return request.lease.missing(self._state.reservation.tokens(request))

    def changed(self, request: Request, before: int) -> None:
        """Note that a request has taken pages, or has more reserved than before.

        Args:
            before: what `of` returned then; 0 if nothing was reserved for it.
        """
        if self._total is not None:
            self._total += self.of(request) - before

    def recount(self) -> None:
        """Count anew when it is next asked for: requests have started or have been preempted."""
        self._total = None

    def fit_beside_loads(self, newcomers: Sequence[Request], num_pages: int) -> bool:
        """Return whether every started request and every newcomer could have all pages that it may ever need, besides
        those that are being loaded for others and those in the windows of offloaded requests.

        Args:
            num_pages: pages that are to be loaded for the newcomer, or to be its window.
        """
        state, kv = self._state, self._state.kv
        away = kv.tiers.num_loading + kv.num_window_pages + num_pages
        if not away:
            return True
        own = {request.id: lease.num_loading for request in state.loading.values() if (lease := request.lease)}
        own |= {request.id: num_pages for request in newcomers}
        return all(
            kv.pages_for(request.prompt_len + request.max_tokens) + away - own.get(request.id, 0) <= kv.num_pages
            for request in (*state.started(), *newcomers)
        )
