"""The interfaces of the loop's parts. They are structural: a runner or a link need not import them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sluice.engine.messages import AdapterLoaded, AdapterRead, Compiled, LoadAdapter, Message, Stats
from sluice.engine.meter import GrammarTotals
from sluice.types import (
    NO_ADAPTERS,
    AdapterSwap,
    BatchPlan,
    BatchResult,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    StoredPage,
    Submit,
)


class Planner(Protocol):
    """Plans each step: `scheduler.Scheduler`, or a wrapper around it."""

    @property
    def has_work(self) -> bool:
        """Some request has not left, or pages are left to store."""
        ...

    @property
    def awaits_report(self) -> bool:
        """Copies with the disk, blocks to be read from it, or grammars have not come: a message will report them."""
        ...

    def add(self, submit: Submit) -> None:
        """Queue a request.

        Raises:
            ValueError: the request is refused; the message says why.
        """
        ...

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]: ...

    def flush_cache(self) -> int:
        """Forget every cached page that no request holds. Returns how many."""
        ...

    def occupancy(self) -> Occupancy:
        """Return how full it is now."""
        ...

    def queued_prefill_tokens(self) -> int:
        """Return how many prompt tokens are neither computed nor cached, of all requests."""
        ...

    def schedule(self) -> BatchPlan | None: ...

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        """Take the result of the oldest plan in flight.

        Args:
            micros: microseconds that the step took; 0: not measured.
        """
        ...

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        """End the requests of the oldest plan in flight, which failed as a whole. If it was not launched, none of its
        copies was begun."""
        ...

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        """Take the ends of copies. Requests may end with them."""
        ...

    def blocks_loaded(
        self, step: int, ready: int, error: str | None = None, lost_page: int | None = None
    ) -> list[Output]:
        """Take a report that blocks of an offloaded chunk were loaded, or cannot be read (`messages.BlocksLoaded`). A
        request may end with it. Reports of a chunk that is over are ignored."""
        ...

    def compiled(self, request_id: int, error: str | None = None) -> list[Output]:
        """Take the report that a request's grammar was compiled, or cannot be (`messages.Compiled`). The request ends
        with an error. Reports of requests that have ended are ignored."""
        ...

    def take_swaps(self) -> Sequence[AdapterSwap]:
        """Return the adapters that are to be loaded now, each once."""
        ...

    def adapter_loaded(self, adapter: str, error: str | None = None) -> list[Output]:
        """Take the report that an adapter was loaded, or cannot be (`messages.AdapterLoaded`). The requests that wait
        for it end with an error."""
        ...

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Take over the pages that a disk tier held when it was opened, before any request. Returns how many."""
        ...

    def forget_device(self) -> None:
        """Forget the state of the device, which lost it, with nothing in flight."""
        ...


class Pending(Protocol):
    """A launched step."""

    def wait(self) -> BatchResult:
        """Block until the step is done. Raises the error that made the step as a whole fail."""
        ...


class Runner(Protocol):
    """Turns plans into tokens. Plans run in the order in which they are launched."""

    def launch(self, plan: BatchPlan) -> Pending:
        """Start a step and return at once. If it raises, none of the plan's copies was begun."""
        ...

    def close(self) -> None:
        """End its threads. No launch may follow; may be called again."""
        ...


class Grammars(Protocol):
    """Compiles the grammars of requests."""

    def prepare(self) -> None:
        """Do now what is done once, and takes most of a second."""
        ...

    def compile(self, request_id: int, grammar: str) -> Compiled | None:
        """Begin to compile the grammar of a request, and keep it until the request is forgotten. Returns at once.

        Returns:
            What came of it, if that is known already. None: the link will get it as a message.
        """
        ...

    def forget(self, request_ids: Iterable[int]) -> None:
        """Forget requests, which have ended; they need not have a grammar."""
        ...

    def totals(self) -> GrammarTotals:
        """Return what was counted since the start."""
        ...

    def close(self) -> None:
        """Begin no other. May be called again."""
        ...


class Adapters(Protocol):
    """Reads adapters, keeps them on the host, and loads them beside the model."""

    def problem(self, adapter: str) -> str | None:
        """Return why no request may have the adapter of this digest, in words for an error; None: it was read."""
        ...

    def name_of(self, adapter: str) -> str:
        """Return a name of an adapter; its digest if it has none."""
        ...

    def read(self, asked: LoadAdapter) -> None:
        """Begin to read an adapter, which is kept until it is forgotten. Returns at once; the link gets a message."""
        ...

    def answer(self, read: AdapterRead) -> None:
        """Tell the one who asked what came of it."""
        ...

    def forget(self, adapter: str) -> None:
        """Forget an adapter, which no request will be added for."""
        ...

    def swap(self, swap: AdapterSwap) -> AdapterLoaded | None:
        """Begin to load an adapter beside the model. Returns at once.

        Returns:
            What came of it, if that is known already. None: the link will get it as a message.
        """
        ...

    def loaded(self, adapter: str) -> None:
        """Note on the engine's thread, between two steps, that an adapter was loaded.

        Raises:
            ValueError: other ranks cannot load it.
        """
        ...

    def close(self) -> None:
        """Begin no other. May be called again."""
        ...


class Link(Protocol):
    """The source of messages and the target of outputs."""

    def receive(self, *, block: bool, timeout: float | None = None) -> Sequence[Message]:
        """Return the messages that have arrived, in order. With `block`, wait for at least one, but not longer than
        `timeout` seconds, if there is a limit."""
        ...

    def post(self, message: Message) -> None:
        """Put a message in, from any thread; a waiting `receive` wakes."""
        ...

    def send(self, outputs: Sequence[Output]) -> None:
        """Deliver the outputs of one step (never empty)."""
        ...

    def answer(self, stats: Stats) -> None:
        """Deliver the answer to a `QueryStats` or a `FlushCache`."""
        ...


class NoGrammars:
    """Compiles nothing: a request with a grammar ends with an error."""

    def prepare(self) -> None:
        """Return: there is nothing to do."""

    def compile(self, request_id: int, grammar: str) -> Compiled | None:
        return Compiled(request_id, "this engine takes no grammars")

    def forget(self, request_ids: Iterable[int]) -> None:
        """Return: nothing is kept."""

    def totals(self) -> GrammarTotals:
        return GrammarTotals()

    def close(self) -> None:
        """Return: nothing is open."""


class NoAdapters:
    """Has no adapters, and reads none."""

    def problem(self, adapter: str) -> str | None:
        return NO_ADAPTERS

    def name_of(self, adapter: str) -> str:
        return adapter

    def read(self, asked: LoadAdapter) -> None:
        """Return: an engine without adapters is not asked."""

    def answer(self, read: AdapterRead) -> None:
        """Return: it was not asked."""

    def forget(self, adapter: str) -> None:
        """Return: nothing is kept."""

    def swap(self, swap: AdapterSwap) -> AdapterLoaded | None:
        return AdapterLoaded(swap.adapter, self.problem(swap.adapter))

    def loaded(self, adapter: str) -> None:
        """Return: nothing is loaded."""

    def close(self) -> None:
        """Return: nothing is open."""
