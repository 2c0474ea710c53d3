"""MeasuredDrafter: guesses tokens, and as many as have shown to be worth it.

Looking for guesses costs the host time in every step, which is lost where there are none. So in a batch a request that
had no draft rests: it is not asked for in the next 1, 2, 4 and more steps, up to about as many as there are requests.
Then a batch without guesses asks for one request in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.scheduler.drafting.draft_sizer import DraftSizer, Offer
from sluice.scheduler.drafting.guesser import Guesser, RunnerGuesser
from sluice.scheduler.drafting.ngram import NgramGuesser
from sluice.scheduler.request import Request, Status
from sluice.types import NGRAM, DraftLimits

LONGEST_PAUSE = 64
"""Most tokens of a `Misses.pause`."""


class Misses(NamedTuple):
    """Rows of a request whose drafts were all wrong."""

    pause: int
    """Tokens that overlap after the last one."""
    until: int
    """Number of known tokens with which it ends."""


class Rest(NamedTuple):
    """Steps in which a request of a batch is not asked for."""

    length: int
    until: int
    """Number of the last of these steps."""


class MeasuredDrafter:
    """Guesses tokens with a guesser, and keeps of each guess what a sizer says (`drafter.Drafter`).

    Args:
        most: drafts of a row, at least 1.
    """

    def __init__(self, guesser: Guesser, most: int) -> None:
        self.in_runner = guesser.in_runner
        self._guesser = guesser
        self._sizer = DraftSizer(most)
        self._pays = True
        """Whether drafts were worth guessing in the latest step with decodes."""
        self._misses: dict[int, Misses] = {}
        """Misses by request."""
        self._matches: dict[int, int] = {}
        """Matches of the guesses of this step that were not chosen yet, by request."""
        self._step = 0
        """Steps with decodes."""
        self._rows = 0
        """Decodes of this step."""
        self._rests: dict[int, Rest] = {}
        """Rests of requests in a batch that were asked for drafts and had none."""

    def wants(self, request: Request) -> bool:
        """Return whether there is likely to be a good guess. After each that was wrong twice as many tokens overlap.
        Where none is likely, the request rests."""
        is_alone = request.status is Status.OFFLOADED  # whatever the steps of the others are like
        if not is_alone and (not self._pays or self._is_resting(request)):
            return False
        misses = self._misses.get(request.id)
        if misses is not None and len(request.tokens) < misses.until:
            return False
        if self._guesser.hopes(request):
            return True
        if not is_alone:
            self._rest(request.id)
        return False

    def pays(self, rows: int) -> bool:
        """Return whether drafts may be worth it. Requests that were asked for in the step before and had none rest."""
        self._guesser.begin_step()
        if not rows:
            return False
        for request_id in self._matches:
            self._rest(request_id)
        self._step, self._rows = self._step + 1, rows
        self._pays = self._sizer.pays(rows)
        self._matches.clear()
        return self._pays

    def awake(self, requests: Sequence[Request]) -> Sequence[Request]:
        rests, step = self._rests, self._step
        if not rests:
            return requests
        return [one for one in requests if (rest := rests.get(one.id)) is None or step > rest.until]

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        token_ids, self._matches[request.id] = self._guesser.propose(request, at_most)
        return token_ids

    def propose_alone(self, request: Request, costs: Sequence[float]) -> Sequence[int]:
        token_ids, match = self._guesser.propose(request, len(costs) - 1)
        count = self._sizer.choose_alone(Offer(request.id, len(token_ids), match), costs) if token_ids else 0
        return token_ids[:count]

    def choose(self, rows: int, found: Mapping[int, Sequence[int]], at_most: int) -> dict[int, Sequence[int]]:
        offers = [Offer(request_id, len(drafts), self._matches[request_id]) for request_id, drafts in found.items()]
        counts = self._sizer.choose(rows, offers, at_most)
        for request_id, count in zip(found, counts, strict=True):
            if count:
                del self._matches[request_id]
                self._rests.pop(request_id, None)
        return {
            request_id: drafts[:count]
            for (request_id, drafts), count in zip(found.items(), counts, strict=True)
            if count
        }

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        self._sizer.verified(request.id, drafted, accepted)
        if accepted:
            self._misses.pop(request.id, None)
        else:
            before = self._misses.get(request.id)
            pause = 2 if before is None else min(2 * before.pause, LONGEST_PAUSE)
            self._misses[request.id] = Misses(pause, len(request.tokens) + pause)

    def stepped(self, rows: int, drafts: int, micros: int) -> None:
        self._sizer.stepped(rows, drafts, micros)

    def ended(self, request: Request) -> None:
        self._sizer.forget(request.id)
        self._misses.pop(request.id, None)
        self._rests.pop(request.id, None)
        self._matches.pop(request.id, None)
        self._guesser.ended(request)

    def flush(self) -> None:
        self._guesser.flush()

    def _is_resting(self, request: Request) -> bool:
        rest = self._rests.get(request.id)
        return rest is not None and self._step <= rest.until

    def _rest(self, request_id: int) -> None:
        """Let a request rest that was asked for in this step in vain; a lone one does not."""
        before = self._rests.get(request_id)
        length = min(1 if before is None else 2 * before.length, self._rows - 1)
        if length > 0:
            self._rests[request_id] = Rest(length, self._step + length)


def drafter_of(limits: DraftLimits, most: int) -> MeasuredDrafter:
    """Return a new drafter.

    Args:
        most: drafts of a row, at least 1.
    """
    guesser = NgramGuesser(limits.ngram) if limits.algorithm == NGRAM else RunnerGuesser()
    return MeasuredDrafter(guesser, most)
