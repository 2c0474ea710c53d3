"""Backends that lay a step's work out once, before its first layer, and use that in every layer."""

from __future__ import annotations

from typing import Final, Protocol

from sluice.attention.base import ForwardBatch


class StepPlanner(Protocol):
    """Is told of every step, on the stream that computes it."""

    def plan(self, batch: ForwardBatch) -> None:
        """A step is about to run, layer by layer."""
        ...

    def plan_static(self, batch: ForwardBatch) -> None:
        """A step of decodes is about to be captured, or replayed, as a graph.

        Args:
            batch: its tensors are the same ones whenever the number of rows is; its lengths on the host are those of
                this step.
        """
        ...


class NoPlans:
    """For a backend that needs nothing laid out."""

    def plan(self, batch: ForwardBatch) -> None:
        """See `StepPlanner.plan`."""

    def plan_static(self, batch: ForwardBatch) -> None:
        """See `StepPlanner.plan_static`."""


NO_PLANS: Final = NoPlans()
