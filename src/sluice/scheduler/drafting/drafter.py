"""Drafter: what a scheduler asks for guesses of the tokens that follow those of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def pays(self, rows: int) -> bool:
        """Return whether drafts may be worth it in a step of so many decodes. If not, none of these is asked
        for. Called once for a step."""
        ...

    def awake(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return those that are worth asking for in this step, of the requests that decode in it."""
        ...

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        """Return guesses of the tokens behind those of a request of which nothing is pending, best first to check.

        Args:
            at_most: 1 or more.
        """
        ...

    def propose_alone(self, request: Request, costs: Sequence[float]) -> Sequence[int]:
        """Return guesses that are worth to be checked, as `propose`, for a row computed separately from the others
        of its step, since its context is longer than the device.

        Args:
            costs: of the row without drafts, with one, with two, and so on, as far as it may have some; two or more.
        """
        ...

    def choose(self, rows: int, found: Mapping[int, Sequence[int]], at_most: int) -> Mapping[int, Sequence[int]]:
        """Return what is worth to be checked of the guesses for a step: of each the first tokens, at least one, or
        nothing.

        Args:
            rows: decodes of the step.
            found: guesses by request, none of them empty.
            at_most: drafts of the step, 1 or more.
        """
        ...

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Note how many drafts of a row were accepted. The request has the tokens that the row brought, and may have
        ended with them."""
        ...

    def stepped(self, rows: int, drafts: int, micros: int) -> None:
        """Note how long a step of decodes alone took.

        Args:
            drafts: of all its rows.
            micros: microseconds; 0: it was not measured.
        """
        ...

    def ended(self, request: Request) -> None:
        """Forget a request that is gone."""
        ...

    def flush(self) -> None:
        """Forget what was kept of requests that are gone."""
        ...
