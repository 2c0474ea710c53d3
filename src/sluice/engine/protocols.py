"""What the loop needs from others. Implemented structurally: a runner or a link imports nothing from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.engine.messages import Message
from sluice.types import BatchPlan, BatchResult, Output


class Pending(Protocol):
    """A launched step."""

    def wait(self) -> BatchResult:
        """Block until the step is done. Raises whatever made the step as a whole fail."""
        ...


class Runner(Protocol):
    """Turns plans into tokens. Plans run in launch order."""

    def launch(self, plan: BatchPlan) -> Pending:
        """Start a step and return at once."""
        ...


class Link(Protocol):
    """Where messages come from and outputs go."""

    def receive(self, *, block: bool) -> Sequence[Message]:
        """Messages that have arrived, in order. With `block`, wait for at least one."""
        ...

    def send(self, outputs: Sequence[Output]) -> None:
        """Deliver the outputs of one step (never empty)."""
        ...
