"""Law 20: the pages of a very long context are found, reserved and given back over several steps."""

from __future__ import annotations

from sluice.kv.offload import OffloadLease
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.view import live
from sluice.types import BatchPlan


class Openings:
    """20. A step that others wait for finds and reserves at most `OffloadLimits.pages_per_step` pages for requests that
    begin.

    Nothing is said of a call with nothing in flight that plans no decode: nobody waits for it.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        """Request -> pages of its context that it had on the tier."""
        self._is_awaited = False

    def before(self, state: SchedulerState) -> None:
        """Note what requests hold before a step is planned."""
        self._pages = _pages(state)
        self._is_awaited = state.num_in_flight > 0

    def check(self, state: SchedulerState, plan: BatchPlan | None) -> None:
        """Check what was found and reserved while a step was planned."""
        if not state.kv.can_offload or not (self._is_awaited or (plan is not None and plan.num_decodes)):
            return
        most = state.kv.offload.limits.pages_per_step
        count = sum(max(0, pages - self._pages.get(request, 0)) for request, pages in _pages(state).items())
        if count > most:
            raise LawBroken(
                f"law 20: step {state.step} found and reserved {count} pages of a tier, {most} are its share"
            )


def _pages(state: SchedulerState) -> dict[int, int]:
    leases = ((request.id, request.lease) for request in live(state))
    return {request: len(lease.row) for request, lease in leases if isinstance(lease, OffloadLease)}
