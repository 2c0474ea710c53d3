"""What the rest of Sluice knows of the grammars of requests, which `guidance` compiles and follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sluice.runner.grammar.guidance import GuidanceMatcher


class CompiledGrammar(Protocol):
    """A grammar, ready to be followed by any number of outputs."""

    def matcher(self, *, may_force: bool = True) -> GuidanceMatcher:
        """Return a matcher at the beginning.

        Args:
            may_force: it looks ahead for tokens that must follow. One that may not takes longer to be made, and follows
                grammars in which such a run exceeds a limit.

        Raises:
            GrammarError: a limit was reached.
        """
        ...


class CompiledGrammars(Protocol):
    """Finds the grammars of requests."""

    def find(self, request_id: int) -> CompiledGrammar:
        """Return the grammar of a request that was reported as compiled and has not ended."""
        ...

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Call a function with each request that ends, on the thread of the engine's loop."""
        ...
