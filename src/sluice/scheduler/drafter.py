"""Drafter: what a scheduler asks for guesses of the tokens that follow those of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.scheduler.request import Request


class Drafter(Protocol):
    """Guesses tokens. A guess costs a token of a step, and brings one if it is right; it never changes an answer.

    What it returns is a function of the calls made to it and of the requests' tokens, as plans are.
    """

    in_runner: bool
    """Whether the runner guesses, as a draft model does. Then `propose` returns tokens of no meaning, which are only
    counted."""

    def wants(self, request: Request) -> bool:
        """Return whether drafts are worth that the request's next token is planned when all before it are known, so
        that its rows no longer overlap."""
        ...

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        """Return guesses of the tokens behind those of a request of which nothing is pending, best first to check.

        Args:
            at_most: 1 or more.
        """
        ...

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Note how many drafts of a row were accepted. The request has the tokens that the row brought, and may have
        ended with them."""
        ...

    def ended(self, request: Request) -> None:
        """Forget a request that is gone."""
        ...
