"""What the loop needs from others. Implemented structurally: a runner or a link imports nothing from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.engine.messages import Message, Stats
from sluice.engine.trace import StepRecord, StepTimes
from sluice.types import BatchPlan, BatchResult, CopyDone, FinishReason, Occupancy, Output, StoredPage, Submit


class Planner(Protocol):
    """Decides each step: `scheduler.Scheduler`, or a wrapper around it."""

    @property
    def has_work(self) -> bool:
        """Some request has not left, or something is left to store."""
        ...

    @property
    def awaits_disk(self) -> bool:
        """Copies with the disk, or blocks to be read from it, have not come: a message will report them."""
        ...

    def add(self, submit: Submit) -> None:
        """Queue a request.

        Raises:
            ValueError: the request is refused; the message says why.
        """
        ...

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]: ...

    def flush_cache(self) -> int:
        """Forget every cached page that nobody uses. Returns how many."""
        ...

    def occupancy(self) -> Occupancy:
        """How full it is now."""
        ...

    def schedule(self) -> BatchPlan | None: ...

    def commit(self, plan: BatchPlan, result: BatchResult) -> list[Output]: ...

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        """The oldest plan in flight failed as a whole. If it was not even launched, none of its copies was begun."""
        ...

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        """Copies have ended. Requests may end with them."""
        ...

    def blocks_loaded(self, step: int, ready: int, error: str | None = None) -> list[Output]:
        """Blocks of an offloaded chunk were loaded, or cannot be read: see `messages.BlocksLoaded`. A request may end
        with them. Reports of a chunk that is over are ignored."""
        ...

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Take over what a disk tier held when it was opened, before any request. Returns how many pages."""
        ...

    def forget_device(self) -> None:
        """The device lost its state, with nothing in flight."""
        ...


class Pending(Protocol):
    """A launched step."""

    def wait(self) -> BatchResult:
        """Block until the step is done. Raises whatever made the step as a whole fail."""
        ...


class Runner(Protocol):
    """Turns plans into tokens. Plans run in launch order."""

    def launch(self, plan: BatchPlan) -> Pending:
        """Start a step and return at once. If it raises, none of the plan's copies was begun."""
        ...

    def close(self) -> None:
        """End what it does on threads of its own. No launch may follow; may be called again."""
        ...


class Link(Protocol):
    """Where messages come from and outputs go."""

    def receive(self, *, block: bool, timeout: float | None = None) -> Sequence[Message]:
        """Messages that have arrived, in order. With `block`, wait for at least one, but for no longer than `timeout`
        seconds, if there is a limit."""
        ...

    def post(self, message: Message) -> None:
        """Put a message in, from any thread; whoever waits in `receive` wakes."""
        ...

    def send(self, outputs: Sequence[Output]) -> None:
        """Deliver the outputs of one step (never empty)."""
        ...

    def answer(self, stats: Stats) -> None:
        """Deliver the answer to a `QueryStats` or a `FlushCache`."""
        ...


class TraceSink(Protocol):
    """Is told of every step."""

    @property
    def latest(self) -> StepRecord | None:
        """The last step it was told of, if it keeps it."""
        ...

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        """A step is over; steps end in the order of their plans. Called before it is committed.

        Args:
            result: None if the step failed as a whole.
        """
        ...

    def close(self) -> None:
        """The engine steps no more: nothing may be left unwritten. Twice is once."""
        ...
