"""NoGrammars: for an engine whose requests have no grammar."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.engine.messages import Compiled
from sluice.engine.meter import GrammarTotals


class NoGrammars:
    """Compiles nothing: a request with a grammar ends with an error."""

    def compile(self, request_id: int, grammar: str) -> Compiled | None:
        return Compiled(request_id, "this engine takes no grammars")

    def forget(self, request_ids: Iterable[int]) -> None:
        """Return: nothing is kept."""

    def totals(self) -> GrammarTotals:
        return GrammarTotals()

    def close(self) -> None:
        """Return: nothing is open."""
