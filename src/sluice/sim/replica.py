"""Replica: one engine and its scheduler on a virtual clock, an event at a time, so that several share one time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from sluice.bench.records import TokenArrival
from sluice.config import ConfigError
from sluice.engine.clock import VirtualClock, micros_at
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, AdapterLoaded
from sluice.engine.protocols import NoAdapters
from sluice.kv.events import NO_EVENTS
from sluice.kv.nodes import Node
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.copies import SimulatedCopies
from sluice.sim.fast_forward import FastForwarder
from sluice.sim.loop import EngineLoop, SimLink, SimulatedTimes
from sluice.sim.publishing import Published, Publisher, PublishTimes
from sluice.sim.remote import keep_remote, let_go, load_of
from sluice.sim.runner import KnownAnswer, SimRunner
from sluice.sim.workload import STOP_TOKEN, Arrival
from sluice.sim.world import CopyRates, WorldTimes
from sluice.types import AdapterSwap, FinishReason, Occupancy, Output, SamplingParams, Submit


@lru_cache(maxsize=4096)
def sampling_of(max_tokens: int, *, stops: bool) -> SamplingParams:
    """Return sampling parameters as an engine gets them. Requests of equal lengths share them."""
    return SamplingParams(max_tokens=max_tokens, seed=0, stop_token_ids=(STOP_TOKEN,) if stops else ())


class Done(NamedTuple):
    """A request that is over, as its client sees it. Times are seconds since the start."""

    ticket: int
    """Number that it was submitted with."""
    arrival: Arrival
    due: float
    ended: float
    tokens: tuple[TokenArrival, ...]
    last: Output


class _Open:
    """A request that has not ended."""

    __slots__ = ("arrival", "due", "leave_after", "remote", "ticket", "tokens")

    def __init__(self, arrival: Arrival, due: float, ticket: int) -> None:
        self.ticket = ticket
        self.arrival = arrival
        self.due = due
        self.tokens: list[TokenArrival] = []
        self.remote: list[Node] = []
        """Pages of its prompt that another replica computed."""
        self.leave_after = arrival.leaves.after_tokens if arrival.leaves is not None else 0


class AdaptersAtOnce(NoAdapters):
    """Has every adapter, and loads it in no time."""

    def problem(self, adapter: str) -> None:
        """Return: there is none."""

    def swap(self, swap: AdapterSwap) -> AdapterLoaded:
        return AdapterLoaded(swap.adapter)


class SimulatedReplica:
    """An engine that runs when it is told to.

    Args:
        setup: of its scheduler.
        times: how long its steps take.
        depth: steps in flight at once.
        intake: seconds from the arrival of a request to when its engine can take it.
        rates: what copies with the disk take.
        leaps: do equal steps of decodes in one go; nothing but the speed depends on it.
        publishes: when it says what it has to do; None: never. Nothing else depends on it.
    """

    def __init__(
        self,
        setup: SchedulerSetup,
        times: SimulatedTimes,
        *,
        depth: int = 1,
        intake: float = 0.0,
        rates: CopyRates | None = None,
        leaps: bool = True,
        publishes: PublishTimes | None = None,
    ) -> None:
        self.setup = setup
        self.clock = VirtualClock()
        self.link = SimLink(self.clock, self._take)
        self._publisher = None if publishes is None else Publisher(publishes, setup.page_size)
        scheduler = setup.build(NO_EVENTS if self._publisher is None else self._publisher.log)
        copies = SimulatedCopies(setup, rates or CopyRates(), self.link.put, load_of(scheduler.state.kv))
        self.runner = SimRunner(self.clock, times, copies)
        self.engine = Engine(
            scheduler, self.runner, self.link, depth=depth, clock=self.clock, adapters=AdaptersAtOnce()
        )
        self.engine.exit_on_error = True
        self.started: list[int] = []
        """Tickets of requests that have their first token, for the caller to take out."""
        self.done: list[Done] = []
        """Requests that are over, for the caller to take out."""
        self._loop = EngineLoop(self.engine, self.link, self.clock, times)
        self._intake = intake
        drafter = scheduler.state.drafter
        if drafter is not None and drafter.in_runner:
            raise ConfigError("a simulation has no draft model: what it guesses, and what is accepted, are not known")
        self.runner.has_drafts = drafter is not None
        self._leaper = (
            FastForwarder(self.engine, setup, times, self._answer_of)
            if leaps and isinstance(times, WorldTimes)
            else None
        )
        self._scheduler = scheduler
        self.num_leapt = 0
        """Steps that were leapt over."""
        self._next_id = 0
        self._open: dict[int, _Open] = {}

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return self._scheduler.state.step

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def occupancy(self) -> Occupancy:
        """Return how full its scheduler is. Requests that its engine has not taken yet are not counted."""
        return self.engine.scheduler.occupancy()

    def submit(
        self, arrival: Arrival, ticket: int = 0, due: float | None = None, first: TokenArrival | None = None
    ) -> None:
        """Let a request arrive.

        Args:
            ticket: comes back when it is over.
            due: seconds; None: at its own time.
            first: the first token, which another replica brought, and after which the request comes here. The pages of
                its prompt are on the tier from which this replica loads them (`remote.keep_remote`).

        Raises:
            ConfigError: the tier is full, or rows have drafts and the answer is not known.
        """
        if self.runner.has_drafts and arrival.answer is None:
            raise ConfigError(
                "a simulation with drafts needs the tokens of the answers; of the workloads, traces of sluice serve"
                " hold them, unless they were written with --no-trace-token-ids"
            )
        due = arrival.time if due is None else due
        stops = arrival.output_tokens < arrival.max_tokens
        self._next_id += 1
        prompt = tuple(arrival.prompt.tokens())
        answer = KnownAnswer(self._next_id, len(prompt), arrival.output_tokens, stops=stops, tokens=arrival.answer)
        request = _Open(arrival, due, ticket)
        if first is not None:
            request.remote = keep_remote(self._scheduler.state.kv, array("i", prompt), arrival.namespace)
            request.tokens.append(first)
        submit = Submit(
            self._next_id,
            prompt,
            sampling_of(arrival.max_tokens, stops=stops),
            extra_key=arrival.extra_key,
            adapter=arrival.adapter,
            priority=arrival.priority,
            priority_class=arrival.priority_class,
            arrived=micros_at(due),
            itl_target=arrival.itl_target,
            output_ids=() if first is None else (answer.at(len(prompt)),),
            is_resumed=first is not None,
        )
        self._open[self._next_id] = request
        self.runner.answers[self._next_id] = answer
        comes_at = due if first is None else first.at
        self.link.put(comes_at + self._intake, submit)
        if arrival.leaves is not None and not arrival.leaves.after_tokens:
            left_at = max(comes_at, due + arrival.leaves.after_seconds)
            self.link.put(left_at + self._intake, Abort(self._next_id))

    def next_event(self) -> float:
        """Return when it does something next, in seconds; `NEVER` if it waits for requests."""
        return self._loop.next_event()

    def advance(self, until: float) -> None:
        """Do all that comes before a moment. What comes at it is left, so that requests that arrive then are seen."""
        publisher = self._publisher
        if publisher is not None and (at := publisher.due(until)) is not None:
            self._advance(at)
            publisher.look(at, self.engine, self._scheduler.state, self._unseen())
        self._advance(until)

    def published(self) -> Published | None:
        """Return what it has published since the last call; None if that is nothing."""
        return None if self._publisher is None else self._publisher.take()

    def _unseen(self) -> Iterator[Arrival]:
        """Yield the requests that its engine has not taken yet."""
        known = self._scheduler.state.requests
        return (request.arrival for request_id, request in self._open.items() if request_id not in known)

    def _advance(self, until: float) -> None:
        loop, leaper = self._loop, self._leaper
        while (at := loop.next_event()) < until:
            if leaper is None or not loop.is_ready or not self._leap(leaper, at, min(until, self.link.next_at)):
                loop.run_next()

    def _leap(self, leaper: FastForwarder, ready_at: float, until: float) -> bool:
        """Do steps of decodes in one go. Returns whether there were any."""
        rows = list(self._scheduler.state.decoding)
        leap = leaper.leap(ready_at, until)
        if leap is None or not leap.ends:
            return False
        self.num_leapt += len(leap.ends)
        arrivals = [TokenArrival(end, 1) for end in leap.ends]
        for request_id in rows:
            self._open[request_id].tokens += arrivals
        self.clock.advance_to(leap.ends[-1])
        self.runner.leapt(leap.ends[-1])
        self._loop.leapt(leap.ready_at)
        return True

    def _leave(self, request: _Open, output: Output, now: float) -> None:
        """Let the client leave if the output brought the last token that it reads."""
        if output.start < request.leave_after <= output.start + len(output.token_ids):
            self.link.put(now, Abort(output.request_id))

    def _answer_of(self, request_id: int) -> tuple[KnownAnswer, int]:
        """Return the answer of a request, and after how many tokens its client leaves; 0: not."""
        return self.runner.answers[request_id], self._open[request_id].leave_after

    def _take(self, outputs: Sequence[Output]) -> None:
        now = self.clock.now()
        for output in outputs:
            request = self._open[output.request_id]
            if output.token_ids:
                if not request.tokens:
                    self.started.append(request.ticket)
                request.tokens.append(TokenArrival(now, len(output.token_ids)))
                if request.leave_after:
                    self._leave(request, output, now)
            if output.finish_reason is not None:
                del self._open[output.request_id]
                del self.runner.answers[output.request_id]
                let_go(self._scheduler.state.kv, request.remote)
                self.done.append(Done(request.ticket, request.arrival, request.due, now, tuple(request.tokens), output))


def is_left(output: Output) -> bool:
    """Return whether a request ended because its client left."""
    return output.finish_reason is FinishReason.ABORT
