"""NgramGuesser: guesses what follows from what followed the same tokens before.

It looks the end of a request's tokens up in the request itself, and in what this server answered lately, and guesses
that what came there comes again. It reads nothing of other tenants: answers are kept by `extra_key`.
"""

from __future__ import annotations

from array import array

from sluice.scheduler.drafting.guesser import NO_DRAFTS, Drafts
from sluice.scheduler.drafting.ngram_index import CATCH_UP, NO_MATCH, Match, NgramIndex
from sluice.scheduler.request import Request
from sluice.types import NgramLimits

LEAD = 32
"""Tokens before an answer that are kept with it: what a prompt ends with says how its answer begins."""
SEPARATOR = -1
"""Stands between answers; no token."""


class RecentAnswers:
    """What was answered lately, by tenant.

    There are two generations. When the younger one has half of the capacity, it becomes the older one, and the older
    one is forgotten.
    """

    def __init__(self, limits: NgramLimits) -> None:
        self._limits = limits
        self._young: dict[str, NgramIndex] = {}
        self._old: dict[str, NgramIndex] = {}
        self._num_young = 0
        self._num_old = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept, of all tenants."""
        return self._num_young + self._num_old

    def add(self, extra_key: str, tokens: array[int]) -> None:
        """Keep an answer, or the end of one that is longer than a generation."""
        room = self._limits.capacity // 2 - 1
        if room < self._limits.shortest or not tokens:
            return
        kept = tokens[-room:]
        if self._num_young + len(kept) > room:
            self._old, self._num_old = self._young, self._num_young
            self._young, self._num_young = {}, 0
        index = self._young.get(extra_key)
        if index is None:
            index = self._young[extra_key] = self._index()
        index.text.extend(kept)
        index.text.append(SEPARATOR)
        self._num_young += len(kept) + 1

    def catch_up(self, extra_key: str, at_most: int) -> int:
        """Index what is not indexed of a tenant's answers, at most so many tokens. Return how many."""
        room = at_most
        for generation in (self._young, self._old):
            if extra_key in generation:
                room -= generation[extra_key].catch_up(room)
        return at_most - room

    def find(self, extra_key: str, tokens: array[int], at_most: int) -> Drafts:
        """Return up to `at_most` tokens that followed what has most in common with the end of some."""
        best, drafts = NO_MATCH, NO_DRAFTS
        for generation in (self._young, self._old):
            index = generation.get(extra_key)
            if index is None:
                continue
            match = index.find(tokens)
            if match.length > best.length:
                found = index.after(match.end, at_most).tolist()
                end = found.index(SEPARATOR) if SEPARATOR in found else len(found)
                if end:
                    best, drafts = match, Drafts(tuple(found[:end]), match.length)
        return drafts

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
        self._num_young = self._num_old = 0

    def _index(self) -> NgramIndex:
        return NgramIndex(array("i"), self._limits.shortest, self._limits.longest)


class NgramGuesser:
    """Guesses by n-grams of the request and of recent answers (`guesser.Guesser`)."""

    in_runner = False

    def __init__(self, limits: NgramLimits | None = None) -> None:
        self._limits = limits or NgramLimits()
        self._own: dict[int, NgramIndex] = {}
        """Indexes of the tokens of requests, by request."""
        self._answers = RecentAnswers(self._limits)
        self._room = CATCH_UP
        """Tokens that may still be indexed in this step, of all requests and answers."""

    @property
    def num_requests(self) -> int:
        """Requests whose tokens are indexed."""
        return len(self._own)

    @property
    def num_answered(self) -> int:
        """Tokens of recent answers that are kept."""
        return self._answers.num_tokens

    def begin_step(self) -> None:
        self._room = CATCH_UP

    def propose(self, request: Request, at_most: int) -> Drafts:
        """Return up to `at_most` tokens that may follow those that are known of a request."""
        index = self._own.get(request.id)
        if index is None:
            index = self._own[request.id] = NgramIndex(request.tokens, self._limits.shortest, self._limits.longest)
        self._room -= index.catch_up(self._room)
        match = index.find(request.tokens)
        if match.length < self._limits.longest and self._limits.capacity:
            self._room -= self._answers.catch_up(request.extra_key, self._room)
            found = self._answers.find(request.extra_key, request.tokens, at_most)
            if found.match > match.length:
                return found
        if match is NO_MATCH:
            return NO_DRAFTS
        return Drafts(tuple(_repeated(index, match, at_most)), match.length)

    def hopes(self, request: Request) -> bool:
        """Return whether the end of what is known of a request occurred before, or its tokens are still indexed."""
        index, tokens = self._own.get(request.id), request.tokens
        if index is None or index.num_left > CATCH_UP or index.find(tokens) is not NO_MATCH:
            return True
        return bool(self._answers.find(request.extra_key, tokens, 1).token_ids)

    def ended(self, request: Request) -> None:
        """Forget a request, and keep its answer among the recent ones."""
        self._own.pop(request.id, None)
        if request.num_outputs:
            self._answers.add(request.extra_key, request.tokens[max(0, request.prompt_len - LEAD) :])

    def flush(self) -> None:
        """Forget the recent answers."""
        self._answers.clear()


def _repeated(index: NgramIndex, match: Match, at_most: int) -> list[int]:
    """Return the tokens after a match. A match that reaches the end of its text is a text that repeats itself, so it
    continues as it did."""
    found = index.after(match.end, at_most).tolist()
    period = len(found)
    while len(found) < at_most:
        found.append(found[-period])
    return found
