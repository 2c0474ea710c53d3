"""Who is told of what passes between the server and its engine. It changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.engine.messages import Submit
from sluice.types import FinishReason, Output


class Watch(Protocol):
    """Is told in the order in which things happen."""

    def submitted(self, request: Submit) -> None:
        """A request is about to be sent; the task that answers its call is running."""
        ...

    def received(self, outputs: Sequence[Output]) -> None:
        """One step's outputs have come, those of requests that nobody waits for any more included."""
        ...

    def ended(self, request_id: int, reason: FinishReason) -> None:
        """A request was given up here, or lost with its engine."""
        ...


class NullWatch:
    """Nobody."""

    def submitted(self, request: Submit) -> None:
        pass

    def received(self, outputs: Sequence[Output]) -> None:
        pass

    def ended(self, request_id: int, reason: FinishReason) -> None:
        pass
