"""How many tokens of a prompt a time is enough for."""

from __future__ import annotations

from math import sqrt

from sluice.scheduler.budget import UNLIMITED
from sluice.types import DENSE, ExpertCounts


def tokens_within(
    costs: tuple[float, ...], micros: float, start: int, experts: ExpertCounts = DENSE, beside: int = 0
) -> int:
    """Return the most tokens of a prompt from position `start` that take no longer than `micros`.

    n tokens take n (token + pair (start + 1/2)) + pair n n / 2, and read experts that others do not.

    Args:
        experts: of the model.
        beside: tokens that read experts in any case.
    """
    most = _tokens_without_experts(costs, micros, start)
    if not experts.held or not costs[6] or not most:
        return most
    known = experts.read(beside)
    least = _tokens_without_experts(costs, micros - costs[6] * (experts.held - known), start)
    while least < most:  # between as if all were read, and as if none were
        middle = least + (most - least + 1) // 2
        read = experts.read(beside + middle) - known
        if middle <= _tokens_without_experts(costs, micros - costs[6] * read, start):
            least = middle
        else:
            most = middle - 1
    return least


def _tokens_without_experts(costs: tuple[float, ...], micros: float, start: int) -> int:
    if micros <= 0:
        return 0
    linear = costs[1] + costs[4] * (start + 0.5)
    below = linear + sqrt(linear * linear + 2 * costs[4] * micros)
    return min(UNLIMITED, int(2 * micros / below)) if below * UNLIMITED > 2 * micros else UNLIMITED
