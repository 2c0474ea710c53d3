"""A fake drafter, whose guesses are as good as a test wants."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

from sluice.scheduler.request import Request
from sluice.testing.oracle import sampled_and_forced


class OracleDrafter:
    """Guesses the shadow model's tokens (`scheduler.drafter.Drafter`), some of them wrongly, as a hash decides.

    Args:
        vocab_size: as the runner's.
        right: share of the guesses that are right.
        wanted: share of the requests, and of the moments of each, at which drafts are wanted.
    """

    def __init__(self, *, vocab_size: int, right: float = 0.7, wanted: float = 1.0, in_runner: bool = False) -> None:
        self.in_runner = in_runner
        self._vocab_size = vocab_size
        self._right = right
        self._wanted = wanted
        self.drafted = 0
        self.accepted = 0

    def wants(self, request: Request) -> bool:
        return _share(request.tokens, 1) < self._wanted

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        count = min(at_most, int(_share(request.tokens, 2) * (at_most + 2)))  # none at times, all that it may at others
        return self.guesses(request, count)

    def guesses(self, request: Request, count: int) -> Sequence[int]:
        """Return so many guesses of what follows a request's tokens."""
        submit, known = request.submit, array("i", request.tokens)
        while len(known) < len(request.tokens) + count:
            known.extend(
                sampled_and_forced(known, submit.sampling, submit.sample_index, self._vocab_size, submit.grammar)
            )
        guesses = known[len(request.tokens) : len(request.tokens) + count]
        for index in range(len(guesses)):
            if _share(request.tokens, 4 + index) >= self._right:
                guesses[index] = (guesses[index] + 1) % self._vocab_size
        return tuple(guesses)

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def ended(self, request: Request) -> None:
        """Do nothing: it keeps nothing."""


def _share(tokens: array[int], salt: int) -> float:
    """Return a number from 0 to 1 that depends on all tokens."""
    mixed = (zlib.crc32(tokens.tobytes()) + salt * 0x9E3779B9) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) / 0x100000000
