"""What the loop needs from others. Implemented structurally: a runner or a link imports nothing from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.engine.messages import Message
from sluice.types import BatchPlan, BatchResult, FinishReason, Output, SamplingParams


class Planner(Protocol):
    """Decides each step: `scheduler.Scheduler`, or a wrapper around it."""

    @property
    def has_work(self) -> bool:
        """Some request has not left."""
        ...

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        sample_index: int = 0,
        extra_key: str = "",
        priority: int = 0,
    ) -> None: ...

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]: ...

    def schedule(self) -> BatchPlan | None: ...

    def commit(self, plan: BatchPlan, result: BatchResult) -> list[Output]: ...

    def fail(self, plan: BatchPlan, error: str) -> list[Output]: ...


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
