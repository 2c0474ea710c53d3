"""StepPrices: what drafts add to the time of a step, by the number of requests that decode in it.

For each range of numbers of requests there are the mean time of its steps without drafts, and a line through the times
of those with some: a step with n drafts takes `base` + n `draft`. The steps of one range say little of another. One of
few requests reads all weights for them, and further tokens cost little; one of many computes, and each token costs its
share. Where all steps have drafts for long, one without is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

FIRST_SHARE = 0.06
"""What each draft is supposed to add before any was measured, of a step without."""
DECAY = 0.95
"""Share of a step's weight that stays with each later one of its range; of a step with drafts, with each that has
some."""
PRIOR_WEIGHT = 0.5
"""Weight of a supposed `base`, in steps."""
PRIOR_SQUARES = 2.0
"""Weight of a supposed `draft`, in drafts squared."""
USUAL_DRAFTS = 4
"""Most drafts of a range's first steps that have some, divided by `RAMP`."""
PLAIN_AFTER = 120
"""Steps with drafts, one after the other, before one without."""
CLIP = 3.0
"""A step counts as if it had taken at most so many times what was expected: a lone pause says nothing."""
SUSPECT = 2.0
"""The first step of a shape may be captured, which takes long. It does not count if it took more than so many times
what was expected."""
RAMP = 2
"""Times the drafts that a step was seen with that the next one may have."""


class Price(NamedTuple):
    """What steps take; only the proportions matter."""

    plain: float
    """Price of a step without drafts."""
    base: float
    """Price of a step with drafts, without what each of them adds."""
    draft: float
    most: int
    """Drafts that a step may have: not many more than were seen."""

    wants_plain: bool
    """A step without drafts is to be seen, or seen again."""

    def of(self, drafts: int) -> float:
        return self.base + drafts * self.draft if drafts else self.plain


UNMEASURED = Price(1.0, 1.0, FIRST_SHARE, RAMP * USUAL_DRAFTS, False)


class Range:
    """The steps of about equally many requests, in decayed sums."""

    def __init__(self) -> None:
        self._most = USUAL_DRAFTS
        self._plain = self._plain_count = 0.0
        self._count = self._drafts = self._squares = self._micros = self._product = 0.0
        self._since_plain = PLAIN_AFTER

    @property
    def has_drafts(self) -> bool:
        """Whether a step with drafts was counted."""
        return self._count > 0

    def add(self, drafts: int, micros: float) -> None:
        """Count a step."""
        is_plain = not drafts
        self._plain = DECAY * self._plain + is_plain * micros
        self._plain_count = DECAY * self._plain_count + is_plain
        if is_plain:
            self._since_plain = 0
            return
        self._since_plain += 1
        self._most = max(self._most, drafts)
        self._count = DECAY * self._count + 1
        self._drafts = DECAY * self._drafts + drafts
        self._squares = DECAY * self._squares + drafts * drafts
        self._micros = DECAY * self._micros + micros
        self._product = DECAY * self._product + drafts * micros

    def price(self, draft: float | None) -> Price:
        """Return what steps take. At least one was counted.

        Args:
            draft: what each draft is supposed to add, the less so the more were seen; None: `FIRST_SHARE`.
        """
        plain = self._plain / self._plain_count if self._plain_count else self._micros / self._count
        draft = FIRST_SHARE * plain if draft is None else draft
        count, micros = self._count + PRIOR_WEIGHT, self._micros + PRIOR_WEIGHT * plain
        squares, product = self._squares + PRIOR_SQUARES, self._product + PRIOR_SQUARES * draft
        slope = (count * product - self._drafts * micros) / (count * squares - self._drafts * self._drafts)
        base = (micros - self._drafts * slope) / count
        if base < plain:  # drafts make no step shorter
            base, slope = plain, (product - self._drafts * plain) / squares
        if slope < 0:
            base, slope = max(plain, micros / count), 0.0
        return Price(plain, base, slope, RAMP * self._most, self._since_plain >= PLAIN_AFTER)


class StepPrices:
    """Learns what steps take from those that ran."""

    def __init__(self) -> None:
        self._ranges: dict[int, Range] = {}
        self._shapes: set[tuple[int, int]] = set()
        """Numbers of requests and drafts of the steps that were seen."""
        self._prices: dict[int, Price] = {}
        """Prices of ranges that were asked for, until something is learnt that changes them."""

    def price(self, rows: int) -> Price:
        """Return what steps of so many requests take; before the first, `UNMEASURED`."""
        return self._price(rows.bit_length())

    def add(self, rows: int, drafts: int, micros: float) -> None:
        """Learn from a step of decodes alone.

        Args:
            micros: above 0.
        """
        key = rows.bit_length()
        if drafts and (rows, drafts) not in self._shapes:
            self._shapes.add((rows, drafts))
            if micros > SUSPECT * self._price(key).of(drafts):
                return
        known = self._ranges.get(key)
        if known is None:
            known = self._ranges[key] = Range()
        else:
            micros = min(micros, CLIP * self._price(key).of(drafts))
        known.add(drafts, micros)
        self._prices.clear()

    def _price(self, key: int) -> Price:
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._new_price(key)
        return found

    def _new_price(self, key: int) -> Price:
        own = self._ranges.get(key)
        if own is not None and own.has_drafts:
            return own.price(None)
        nearest = sorted(self._ranges, key=lambda each: (abs(each - key), each))
        if not nearest:
            return UNMEASURED
        if own is None:
            price = self._price(nearest[0])
            return price._replace(base=price.plain, most=RAMP * USUAL_DRAFTS, wants_plain=True)
        like = next((each for each in nearest if self._ranges[each].has_drafts), None)
        return own.price(None if like is None else self._price(like).draft)
