"""What passes between the server and its engine, for those who count or show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.engine.step_watch import StepsSeen
from sluice.types import FinishReason, Output, Submit


class OpenRequest(NamedTuple):
    """A request that has neither ended nor been aborted, in numbers."""

    request_id: int
    arrived: int
    """See `Submit.arrived`."""
    prompt_tokens: int
    output_tokens: int
    """Output tokens that were delivered."""


class Observer:
    """Receives what passes, in order. This base class ignores it."""

    def submitted(self, request: Submit) -> None:
        """Receive a request that is about to be sent, in the task that answers its HTTP call."""

    def received(self, outputs: Sequence[Output]) -> None:
        """Receive the outputs of one step, including those of requests that the client has closed."""

    def ended(self, request_id: int, reason: FinishReason) -> None:
        """Receive the end of a request that was aborted here, or lost with its engine."""

    def stepped(self, seen: StepsSeen) -> None:
        """Receive what steps did, if the engine was asked to report it (`EngineClient.watch_steps`)."""

    def serving(self, is_serving: bool) -> None:
        """Receive that there is an engine from now on, or none until another one is there."""


class Observers(Observer):
    """Hands everything on to several observers.

    Args:
        observers: in the order in which they receive it.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def submitted(self, request: Submit) -> None:
        for each in self._observers:
            each.submitted(request)

    def received(self, outputs: Sequence[Output]) -> None:
        for each in self._observers:
            each.received(outputs)

    def ended(self, request_id: int, reason: FinishReason) -> None:
        for each in self._observers:
            each.ended(request_id, reason)

    def stepped(self, seen: StepsSeen) -> None:
        for each in self._observers:
            each.stepped(seen)

    def serving(self, is_serving: bool) -> None:
        for each in self._observers:
            each.serving(is_serving)
