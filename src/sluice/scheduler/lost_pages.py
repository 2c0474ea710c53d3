"""A page of an offloaded context that is not what was stored, or cannot be read: its request computes it again.

What lies before the page stays where it is, and is found like any cached prefix when the request is admitted again with
the tokens that it has. What lies behind it is given up: it is read behind the page, and the tree holds no gaps.
"""

from __future__ import annotations

from sluice.scheduler.offloading import lease_of
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState

MOST_LOSSES = 64
"""Pages that a request may lose before it gets further than it had been: a disk that loses all of them ends it."""


def lose_page(state: SchedulerState, request: Request, page: int) -> bool:
    """Give up a page that an offloaded request reads, and let the request wait to be admitted again.

    Args:
        page: of the tier; one that the request holds.

    Returns:
        Whether it waits; False: it has lost too many, and is to end.
    """
    lease_of(request).lose(page)
    if request.computed > request.furthest:
        request.furthest, request.num_losses = request.computed, 0
    request.num_losses += 1
    if request.num_losses > MOST_LOSSES:
        return False
    state.set_back(request)
    return True
