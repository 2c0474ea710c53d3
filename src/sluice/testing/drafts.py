"""A fake drafter, whose guesses are as good as a test wants."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence

from sluice.scheduler.request import Request
from sluice.testing.oracle import sampled_and_forced
from sluice.types import Submit


class OracleDrafter:
    """Guesses the shadow model's tokens (`scheduler.drafter.Drafter`), some of them wrongly, as a hash decides.

    Args:
        vocab_size: as the runner's.
        right: share of the guesses that are right.
        wanted: share of the moments at which drafts are wanted.
        in_runner: whether the runner makes the guesses, with `guesses`.
        is_eager: make all guesses that it may, instead of some of them or none.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        right: float = 0.7,
        wanted: float = 1.0,
        in_runner: bool = False,
        is_eager: bool = False,
    ) -> None:
        self.in_runner = in_runner
        self._is_eager = is_eager
        self._vocab_size = vocab_size
        self._right = right
        self._wanted = wanted
        self.open: set[int] = set()
        """Requests that it has guessed for, and that are not gone."""
        self.drafted = 0
        self.accepted = 0

    def wants(self, request: Request) -> bool:
        return _share(request.tokens, 1) < self._wanted

    def pays(self, rows: int) -> bool:
        return True

    def awake(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        self.open.add(request.id)
        share = 1.0 if self._is_eager else _share(request.tokens, 2)
        count = min(at_most, int(share * (at_most + 2)))
        return (0,) * count if self.in_runner else self.guesses(request.tokens, request.submit, count)

    def propose_alone(self, request: Request, costs: Sequence[float]) -> Sequence[int]:
        return self.propose(request, len(costs) - 1)

    def guesses(self, tokens: Sequence[int], submit: Submit, count: int) -> tuple[int, ...]:
        """Return so many guesses of what follows the tokens of a request."""
        known = array("i", tokens)
        while len(known) < len(tokens) + count:
            known.extend(
                sampled_and_forced(known, submit.sampling, submit.sample_index, self._vocab_size, submit.grammar)
            )
        guesses = known[len(tokens) : len(tokens) + count]
        before = known[: len(tokens)]
        for index in range(count):
            if _share(before, 4 + index) >= self._right:
                guesses[index] = (guesses[index] + 1) % self._vocab_size
        return tuple(guesses)

    def choose(self, rows: int, found: Mapping[int, Sequence[int]], at_most: int) -> Mapping[int, Sequence[int]]:
        chosen: dict[int, Sequence[int]] = {}
        for request_id, drafts in found.items():
            if at_most > 0:
                chosen[request_id] = drafts[:at_most]
            at_most -= len(drafts)
        return chosen

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def stepped(self, rows: int, drafts: int, micros: int) -> None:
        """Do nothing: it guesses as much as it was told."""

    def ended(self, request: Request) -> None:
        self.open.discard(request.id)

    def flush(self) -> None:
        """Do nothing: it keeps nothing of requests that are gone."""


def _share(tokens: array[int], salt: int) -> float:
    """Return a number from 0 to 1 that depends on all tokens."""
    mixed = (zlib.crc32(tokens.tobytes()) + salt * 0x9E3779B9) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) / 0x100000000
