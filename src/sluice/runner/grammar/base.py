"""What the rest of Sluice knows of a grammar. A library is behind it (`guidance`); another one could be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.int32]
"""[ceil(vocab / 32)]: bit `t % 32` of word `t // 32` says whether token `t` is allowed."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or cannot go on. The message is meant for the one who sent it."""


class Matcher(Protocol):
    """The place of one output in its grammar. One thread at a time may use it."""

    def consume(self, tokens: Sequence[int]) -> None:
        """Go on by the tokens of an output.

        Raises:
            GrammarError: they do not match, or a limit was reached.
        """
        ...

    def fill(self, bits: Bits) -> None:
        """Write which tokens may follow. Stop tokens are not among them unless the grammar names them.

        Raises:
            GrammarError: a limit was reached.
        """
        ...

    def forced(self) -> list[int]:
        """Return the tokens that must follow, if the grammar leaves no choice of text. Does not go on by them.

        Tokens that the text behind them might change are not among them.

        Raises:
            GrammarError: a limit was reached.
        """
        ...

    def copy(self) -> Matcher:
        """Return a matcher in the same place, which goes on by itself, on any thread."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output must end here: it matches, and nothing can follow."""
        ...


class CompiledGrammar(Protocol):
    """A grammar, ready to be followed by any number of outputs."""

    def matcher(self, *, may_force: bool = True) -> Matcher:
        """Return a matcher at the beginning.

        Args:
            may_force: it looks ahead for tokens that must follow. One that may not takes longer to be made, and follows
                grammars in which such a run exceeds a limit.

        Raises:
            GrammarError: a limit was reached.
        """
        ...


class Compile(Protocol):
    """Compiles the grammars of one model. Several threads may call it."""

    def prepare(self) -> None:
        """Do what is done once, before the first grammar.

        Raises:
            ValueError: no grammar can be compiled.
        """
        ...

    def __call__(self, grammar: str) -> CompiledGrammar:
        """
        Raises:
            GrammarError: the grammar is wrong or too large; the message says why.
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
