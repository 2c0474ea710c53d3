"""Transfer: how pages of a prompt get from the engine that computed them to another one.

The engine that computed a prompt *offers* its pages: it says where they are. The offer travels with the request. The
other engine *takes* them: they become nodes of its prefix tree on a tier behind the device, and the request loads them
as it would load its own. Neither waits for a page to move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.engine.messages import OfferPages, PagesOffered, PagesTaken, TakePages
from sluice.types import PageOffer


class Intake(Protocol):
    """Pages of another engine that are being made loadable, some between two steps each."""

    def go_on(self) -> int | None:
        """Make some more of them loadable. Returns how many tokens all of them hold once there are no more, None
        before."""
        ...


class Transfer(Protocol):
    """Carries pages between engines. Its methods are called between two steps and return at once."""

    def offer(self, tokens: Sequence[int], extra_key: str) -> PageOffer:
        """Return the pages of a context that another engine can read now, from its beginning on.

        Raises:
            ValueError: this engine offers none.
        """
        ...

    def take(self, offer: PageOffer) -> Intake:
        """Begin to make pages of another engine loadable.

        Raises:
            ValueError: this engine takes none, or not these.
        """
        ...


class NoTransfer:
    """For an engine that keeps its pages to itself."""

    def offer(self, tokens: Sequence[int], extra_key: str) -> PageOffer:
        raise ValueError("this engine offers no pages: it has no page file (--kv-disk)")

    def take(self, offer: PageOffer) -> Intake:
        raise ValueError("this engine takes no pages of others")


class Handover:
    """Answers messages about pages.

    Args:
        answer: queues an answer, and returns at once.
        transfer: None: an engine that keeps its pages to itself.
    """

    def __init__(self, answer: Callable[[PagesOffered | PagesTaken], None], transfer: Transfer | None = None) -> None:
        self._answer = answer
        self._transfer: Transfer = transfer or NoTransfer()
        self._intakes: deque[tuple[int, Intake]] = deque()
        """Intakes under way, oldest first, each with the id of the query that asked for it."""

    @property
    def is_busy(self) -> bool:
        """Whether `go_on` has something to do."""
        return bool(self._intakes)

    def handle(self, message: OfferPages | TakePages) -> None:
        """Answer a message. What cannot be done is said in the answer."""
        query_id = message.query_id
        match message:
            case OfferPages(_, tokens, extra_key):
                try:
                    self._answer(PagesOffered(query_id, self._transfer.offer(tokens, extra_key)))
                except ValueError as error:
                    self._answer(PagesOffered(query_id, None, str(error)))
            case TakePages(_, offer):
                try:
                    self._intakes.append((query_id, self._transfer.take(offer)))
                except ValueError as error:
                    self._answer(PagesTaken(query_id, error=str(error)))

    def go_on(self) -> None:
        """Take some more pages, and answer if they are the last ones. Called once in each turn of the engine."""
        if not self._intakes:
            return
        query_id, intake = self._intakes[0]
        tokens = intake.go_on()
        if tokens is not None:
            self._intakes.popleft()
            self._answer(PagesTaken(query_id, tokens))
