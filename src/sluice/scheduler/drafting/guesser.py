"""Guesser: what guesses tokens for a `MeasuredDrafter`, which decides how many of them are checked."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sluice.scheduler.request import Request


class Drafts(NamedTuple):
    """What was guessed for a request."""

    token_ids: tuple[int, ...]
    match: int = 0
    """Tokens that the guess goes by, if it goes by a match: more make it likelier."""


NO_DRAFTS = Drafts(())


class Guesser(Protocol):
    """Guesses tokens. What it guesses is a function of the calls made to it and of the requests' tokens."""

    in_runner: bool
    """Whether it is the runner that guesses, and the tokens are only counted here."""

    def begin_step(self) -> None:
        """Note that the next calls are of another step."""
        ...

    def propose(self, request: Request, at_most: int) -> Drafts:
        """Return guesses of the tokens behind those of a request of which nothing is pending.

        Args:
            at_most: 1 or more.
        """
        ...

    def hopes(self, request: Request) -> bool:
        """Return whether there is likely to be a guess once what is pending of a request is known. Changes nothing."""
        ...

    def ended(self, request: Request) -> None:
        """Forget a request that is gone."""
        ...

    def flush(self) -> None:
        """Forget what was kept of requests that are gone."""
        ...


class RunnerGuesser:
    """Stands for what the runner guesses: as many tokens as are wanted, which mean nothing (`Guesser`)."""

    in_runner = True

    def begin_step(self) -> None:
        """Do nothing: it guesses nothing itself."""

    def propose(self, request: Request, at_most: int) -> Drafts:
        return Drafts((0,) * at_most)

    def hopes(self, request: Request) -> bool:
        return True

    def ended(self, request: Request) -> None:
        """Do nothing: it keeps nothing."""

    def flush(self) -> None:
        """Do nothing: it keeps nothing."""
