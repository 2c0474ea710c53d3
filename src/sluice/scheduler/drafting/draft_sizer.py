"""DraftSizer: how many drafts each request has in a step.

A step of R requests that takes t brings R / t tokens a second. A draft that is accepted with probability p and makes
the step longer by c adds to that if p / c is more. So drafts are taken, the likeliest first, as long as the tokens that
are expected of the step grow faster than its time, and none are if they do not bring `EDGE` times what the step brings
without. In a large batch each token costs its share of the step, and no draft is likely enough.

Probabilities are measured: by the length of the match that a guess goes by, by position in the draft, and by request.
So are times, by the number of requests (`StepPrices`). Where no guess was worth it for long, one request is given two
drafts, since what was learnt once need not hold for ever.

The arithmetic is +, -, *, / and comparisons of floats, and times come with commits: what is planned is a function of
the calls made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.drafting.draft_price import Price, StepPrices

EDGE = 1.05
"""Times as fast as without drafts that tokens must be expected to come with some. What is measured is a few percent
off, and of many choices the best looks better than it is."""
DECAY = 0.97
"""Share of a row's weight, in what all requests show, that stays with each later one."""
OWN_DECAY = 0.8
"""`DECAY` in what one request shows."""
FIRST_CHANCE = 0.7
"""Assumed chance that a draft is accepted if those before it are, until some have been checked."""
PRIOR_WEIGHT = 2.0
"""Weight of the assumed chance, in rows."""
SUREST = 0.98
"""No draft is taken to be likelier."""
LONG_MATCH = 15
"""Matches of more tokens are as good as each other."""
PROBE_DRAFTS = 2
PROBE_AFTER = 16
"""Steps in which no guess was worth it, one after the other, before a probe."""
PROBE_SHARE = 0.01
"""Most of the time that probes take."""


class Offer(NamedTuple):
    """Drafts that a request might have."""

    request_id: int
    drafts: int
    match: int = 0
    """Tokens that the guess goes by; 0 if it goes by no match."""


class Acceptance:
    """How often drafts of one kind are accepted, by position, if those before them are.

    Args:
        most: drafts of a request.
    """

    __slots__ = ("_accepted", "_tried")

    def __init__(self, most: int) -> None:
        self._tried = [PRIOR_WEIGHT] * most
        self._accepted = [PRIOR_WEIGHT * FIRST_CHANCE] * most

    def chances(self, count: int, trust: float, least: float) -> list[float]:
        """Return the probability that the first drafts are all accepted, for one draft, for two, and so on, as far as
        it is not below `least`; for one in any case.

        Args:
            trust: factor of how often those of the request are.
        """
        chance = 1.0
        found: list[float] = []
        for accepted, tried in zip(self._accepted[:count], self._tried, strict=False):
            chance *= min(SUREST, trust * accepted / tried)
            if chance < least and found:
                break
            found.append(chance)
        return found

    def add(self, drafts: int, accepted: int) -> None:
        """Count a row. Positions behind the first draft that was not accepted say nothing."""
        for position in range(min(drafts, accepted + 1)):
            self._tried[position] = DECAY * self._tried[position] + 1
            self._accepted[position] = DECAY * self._accepted[position] + (position < accepted)


@dataclass(slots=True)
class DraftRecord:
    """What the drafts of one request have shown, beside those of others of the same kind."""

    expected: float = 1.0
    """Drafts that were expected to be accepted."""
    accepted: float = 1.0
    match: int = 0
    """Length of the match that its drafts in flight go by; 0 if they go by none."""
    chances: Sequence[float] = ()
    """Chances that one, two, and so on of these are accepted."""

    @property
    def trust(self) -> float:
        return self.accepted / self.expected

    def add(self, drafts: int, accepted: int) -> None:
        """Count its drafts in flight."""
        self.expected = OWN_DECAY * self.expected + (1 - OWN_DECAY) + sum(self.chances[:drafts])
        self.accepted = OWN_DECAY * self.accepted + (1 - OWN_DECAY) + accepted


class DraftSizer:
    """Says how many drafts rows have, and learns from what they brought and how long steps took.

    Args:
        most: drafts of a row, at least 1.
        prices: what steps take.
    """

    def __init__(self, most: int, prices: StepPrices | None = None) -> None:
        self._most = most
        self._prices = prices or StepPrices()
        self._kinds = [Acceptance(most) for _ in range(LONG_MATCH.bit_length() + 2)]
        """Acceptance by `kind_of` a match."""
        self._records: dict[int, DraftRecord] = {}
        self._without = 0
        """Steps one after the other in which no guess was worth it."""
        self._without_alone = 0
        """Steps one after the other in which no guess was worth it for rows that are computed separately."""

    @property
    def num_requests(self) -> int:
        """Requests of which something is remembered."""
        return len(self._records)

    def pays(self, rows: int) -> bool:
        """Return whether drafts may be worth it in a step of so many requests, if they are likely enough, or are to be
        probed. If not, none need be guessed."""
        price = self._prices.price(rows)
        if price.wants_plain:
            return False
        if SUREST * price.plain > rows * price.draft:
            return True
        self._without += 1
        return self._without >= wait_for_probe(price)

    def choose(self, rows: int, offers: Sequence[Offer], at_most: int = UNLIMITED) -> list[int]:
        """Return how many drafts each of some requests has, from none to as many as it is offered.

        Args:
            rows: requests that decode in the step.
            offers: of different requests.
            at_most: drafts of the step, 1 or more.
        """
        if not offers:
            return []
        price = self._prices.price(rows)
        if price.wants_plain:
            return [0] * len(offers)
        # One that is less likely makes the rate worse, if the step brings no less than without drafts.
        least = price.draft * rows / price.plain
        chances = [self._chances(offer, least) for offer in offers]
        counts = self._worthwhile(rows, price, chances, at_most)
        self._without = 0 if any(counts) else self._without + 1
        if self._without > wait_for_probe(price):
            self._without = 0
            likeliest = max(range(len(offers)), key=lambda index: chances[index][0])
            counts[likeliest] = min(PROBE_DRAFTS, offers[likeliest].drafts, at_most)
        for offer, of_row, count in zip(offers, chances, counts, strict=True):
            if count:
                self._chosen(offer, of_row)
        return counts

    def choose_alone(self, offer: Offer, costs: Sequence[float]) -> int:
        """Return how many drafts a row has that is computed separately from the others of its step, as one is whose
        context is longer than the device.

        Args:
            costs: of the row without drafts, with one, with two, and so on, as far as it may have some.
        """
        chances = self._chances(offer, 0.0)[: len(costs) - 1]
        tokens, best, count = 1.0, EDGE / costs[0], 0
        for drafts, chance in enumerate(chances, start=1):
            tokens += chance
            if tokens / costs[drafts] > best:
                best, count = tokens / costs[drafts], drafts
        self._without_alone = 0 if count else self._without_alone + 1
        if self._without_alone > PROBE_AFTER:
            self._without_alone, count = 0, min(PROBE_DRAFTS, len(chances))
        if count:
            self._chosen(offer, chances)
        return count

    def verified(self, request_id: int, drafts: int, accepted: int) -> None:
        """Learn from a row whose drafts were checked.

        Args:
            drafts: of the row, at most as many as were chosen.
        """
        record = self._records.get(request_id)
        if record is None:
            return
        self._kinds[kind_of(record.match)].add(drafts, accepted)
        record.add(drafts, accepted)

    def stepped(self, rows: int, drafts: int, micros: int) -> None:
        """Learn from a step of decodes alone.

        Args:
            micros: that it took; 0: it was not measured.
        """
        if micros > 0 and rows:
            self._prices.add(rows, drafts, micros)

    def forget(self, request_id: int) -> None:
        """Forget a request that has ended."""
        self._records.pop(request_id, None)

    def _chosen(self, offer: Offer, chances: Sequence[float]) -> None:
        """Note what is expected of drafts that were chosen."""
        record = self._records.setdefault(offer.request_id, DraftRecord())
        record.match, record.chances = offer.match, chances

    def _chances(self, offer: Offer, least: float) -> list[float]:
        record = self._records.get(offer.request_id)
        kind = self._kinds[kind_of(offer.match)]
        return kind.chances(min(offer.drafts, self._most), 1.0 if record is None else record.trust, least)

    def _worthwhile(self, rows: int, price: Price, chances: Sequence[Sequence[float]], at_most: int) -> list[int]:
        """Return how many drafts of each row bring most tokens in the time of the step; none if they bring no more than
        it does without."""
        # No draft is likelier than the one before it, so the likeliest of all are the first ones of each row.
        ranked = sorted(
            ((-chance, position, row) for row, of_row in enumerate(chances) for position, chance in enumerate(of_row)),
        )
        tokens, best, taken = float(rows), EDGE * rows / price.plain, 0
        for count, (chance, _, _) in enumerate(ranked[: min(price.most, at_most)], start=1):
            tokens -= chance
            rate = tokens / price.of(count)
            if rate > best:
                best, taken = rate, count
        counts = [0] * len(chances)
        for _, _, row in ranked[:taken]:
            counts[row] += 1
        return counts


def wait_for_probe(price: Price) -> float:
    """Return after how many steps without drafts some are probed."""
    return max(PROBE_AFTER, (price.of(PROBE_DRAFTS) - price.plain) / (PROBE_SHARE * price.plain))


def kind_of(match: int) -> int:
    """Return the kind of guesses that go by so many equal tokens: none, 1, 2 or 3, 4 to 7, 8 to 15, more."""
    return min(match, LONG_MATCH + 1).bit_length()
