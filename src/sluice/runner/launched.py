"""A step on its way: what it sampled and scored travels to the host, and becomes a `BatchResult` there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.device.queues import DoneEvent, Event, noop, wait_until
from sluice.runner.features.base import Outcome
from sluice.types import BatchResult

OtherRanksResult = Callable[[int], BatchResult | None]
"""Waits for the result of a step that other ranks sample. None: this rank is not to know it."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way."""

    step: int
    outcome: Outcome
    arrived: Event
    """All of the outcome is on the host."""
    tick: Callable[[], None] = noop
    """Called every second while the host waits for the step."""

    def wait(self) -> BatchResult:
        """Block until the step is done.

        Returns:
            Its result, whose `errors` name the rows with bad logits, where they sample or before a target, and those
            with bad hidden states, where they embed.
        """
        if not isinstance(self.arrived, DoneEvent):
            wait_until(self.arrived.query, self.tick)
        self.outcome.read()
        return self.outcome.result(self.step)


@dataclass(frozen=True, slots=True)
class PassedStep:
    """A step on its way that other ranks sample."""

    step: int
    outcome: Outcome
    arrived: Event
    """This rank's part is done."""
    elsewhere: OtherRanksResult
    tick: Callable[[], None] = noop

    def wait(self) -> BatchResult:
        """Block until the step is done. Return its result, or an empty one on a rank that is not to know it."""
        if not isinstance(self.arrived, DoneEvent):
            wait_until(self.arrived.query, self.tick)
        result = self.elsewhere(self.step)
        if result is None:
            return BatchResult(self.step, ())
        self.outcome.read_from(result)
        return self.outcome.result(self.step)
