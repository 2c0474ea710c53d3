"""What a replica publishes of itself, and what a prompt token takes there.

A router knows what it has sent; it does not know how far a long prompt is, how fast a replica computes, or what other
routers have sent. A replica that publishes this now and then is seen as it was at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT_SHARE = 0.97
"""Share of a measurement's weight that stays with each later report that has measured something."""


@dataclass(frozen=True, slots=True)
class ObservedOccupancy:
    """What a replica had to do at a moment."""

    queued_prefill_tokens: int
    """Prompt tokens that are neither computed nor in its cache, of all its requests."""
    num_running: int
    """Requests that have a slot."""
    num_waiting: int
    """Requests that have none."""
    free_tokens: int
    """Tokens of its KV pages that are empty or may be evicted."""
    seconds_per_prefill_token: float | None = None
    """Seconds in the latest reports; None if they are not known."""
    speed_weight: float = 1.0
    """How well that is known: `PrefillSpeed.weight`, beside that of other replicas."""
    itl_margin: float | None = None
    """Predicted time of the latest step at the quantile of the ITL target over its prediction; None without a target.
    For scaling the number of replicas; policies do not look at it."""


class PrefillSpeed:
    """Measures what a prompt token takes, from what a replica counts of its steps.

    It is the slope of the seconds of steps over their prompt tokens, through the origin, by least squares: steps with
    many prompt tokens weigh most, since a step with few takes about as long as one with none.
    """

    def __init__(self) -> None:
        self._counted = (0, 0.0)
        self._squares = self._products = 0.0

    @property
    def weight(self) -> float:
        """How much was measured: the sum of the squares of prompt tokens of each step, of late. Few prompts of a few
        tokens say little: what a step takes however small it is counts as time of these tokens."""
        return self._squares

    def seen(self, squares: int, products: float) -> float | None:
        """Return the seconds of a prompt token of late; None: no step had one.

        Args:
            squares: sum of the squares of the prompt tokens of each step, since the replica began.
            products: sum of these tokens times the seconds of the step.
        """
        before, self._counted = self._counted, (squares, products)
        if squares < before[0]:  # its engine was replaced, and counts from zero
            before = (0, 0.0)
        if squares > before[0]:
            self._squares = KEPT_SHARE * self._squares + squares - before[0]
            self._products = KEPT_SHARE * self._products + products - before[1]
        return self._products / self._squares if self._squares else None
