"""Fake grammars for the shadow model, and a compiler of them that takes its time."""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence

from sluice.engine.messages import Compiled
from sluice.engine.meter import GrammarTotals

UNUSABLE = "unusable"
"""A grammar that cannot be compiled."""


def shadow_grammar(*, forces: int = 0, ends: int = 0) -> str:
    """Return a grammar of the shadow model, whose mask forbids nothing.

    Args:
        forces: most tokens that it forces behind a sampled one; how many depends on all tokens before.
        ends: it is complete after one sample in so many, depending on all tokens before; 0: never.
    """
    return f"{forces}/{ends}"


def forced_tokens(grammar: str, tokens: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that a grammar forces behind `tokens`, the last of which was sampled."""
    most, _ = _parsed(grammar)
    found = list(tokens)
    for _ in range(_digest(tokens, 1) % (most + 1)):
        found.append(_digest(found, 2) % vocab_size)
    return tuple(found[len(tokens) :])


def is_complete(grammar: str, tokens: Sequence[int]) -> bool:
    """Return whether a grammar allows nothing after `tokens`."""
    _, ends = _parsed(grammar)
    return ends > 0 and _digest(tokens, 3) % ends == 0


def _parsed(grammar: str) -> tuple[int, int]:
    """Return what it forces, and when it ends; nothing and never, if it is a real grammar."""
    found = re.fullmatch(r"(\d+)/(\d+)", grammar)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _digest(tokens: Sequence[int], salt: int) -> int:
    return zlib.crc32(array("q", tokens).tobytes(), salt)


class ShadowGrammars:
    """Compiles fake grammars (`engine.protocols.Grammars`), some of them later.

    Args:
        post: receives what becomes of those that take their time, when a test calls `work`.
        is_late: called with a request's id: whether its grammar takes its time.

    >>> posted = []
    >>> grammars = ShadowGrammars(posted.append, is_late=lambda request_id: request_id == 2)
    >>> grammars.compile(1, shadow_grammar())
    Compiled(request_id=1, error=None)
    >>> grammars.compile(2, UNUSABLE)
    >>> grammars.work()
    >>> posted
    [Compiled(request_id=2, error='the grammar is unusable')]
    """

    def __init__(
        self, post: Callable[[Compiled], None], is_late: Callable[[int], bool] = lambda request_id: False
    ) -> None:
        self._post = post
        self._is_late = is_late
        self._late: list[Compiled] = []
        self.open: set[int] = set()

    def prepare(self) -> None:
        """Return: there is nothing to do."""
        """Requests whose grammars are kept."""

    def compile(self, request_id: int, grammar: str) -> Compiled | None:
        self.open.add(request_id)
        found = Compiled(request_id, "the grammar is unusable" if grammar == UNUSABLE else None)
        if self._is_late(request_id):
            self._late.append(found)
            return None
        return found

    def work(self) -> None:
        """Report the grammars that took their time. Those of requests that have ended are reported as well."""
        late, self._late = self._late, []
        for found in late:
            self._post(found)

    def forget(self, request_ids: Iterable[int]) -> None:
        self.open.difference_update(request_ids)

    def totals(self) -> GrammarTotals:
        return GrammarTotals()

    def close(self) -> None:
        """Return: nothing is open."""
