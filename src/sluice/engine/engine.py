"""The loop: receive, plan, launch, commit, send. One loop for every mode.

`depth` is the number of steps in flight. 1 is synchronous: a step is launched, then waited for. 2 is overlap: step
n + 1 is planned and launched before step n is waited for. p is a pipeline of p stages. The scheduler decides what may
be planned before a result is known (`lookahead`); when it can plan nothing, the oldest step is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sluice.engine.clock import Clock, StepTimer, WallClock
from sluice.engine.deadlines import Deadlines
from sluice.engine.messages import (
    Abort,
    AdapterLoaded,
    AdapterRead,
    BlocksLoaded,
    Compiled,
    Copied,
    FlushCache,
    LoadAdapter,
    Message,
    OfferPages,
    QueryStats,
    Shutdown,
    Stats,
    TakePages,
    UnloadAdapter,
    WatchSteps,
)
from sluice.engine.meter import Meter, RingTotals, Totals
from sluice.engine.page_feed import PageFeed
from sluice.engine.protocols import (
    Adapters,
    Grammars,
    Link,
    NoAdapters,
    NoGrammars,
    Pending,
    Planner,
    Runner,
)
from sluice.engine.step_watch import StepWatch
from sluice.engine.trace import NullTrace, StepTimes, TraceSink
from sluice.engine.transfer import Handover
from sluice.scheduler.admission import NoTier
from sluice.scheduler.queue_limits import QueueFull
from sluice.scheduler.scheduler import DuplicateRequest
from sluice.types import BatchPlan, BatchResult, FinishReason, Output, Submit


class InFlight(NamedTuple):
    """A step that was launched and has not been waited for."""

    plan: BatchPlan
    pending: Pending
    launched_at: float
    launch_seconds: float


class Engine:
    """Joins a scheduler, a runner and a link.

    Args:
        depth: steps in flight at once.
        clock: times the steps and the requests; None: a `WallClock`.
        trace: receives every step; None: keeps nothing.
        grammars: compiles the grammars of requests; None: those with one are ended with an error.
        timer: measures the steps for the scheduler; None: a new one.
        adapters: reads and loads those of requests; None: requests with one are ended with an error.
        feed: hands on what the prefix cache stores and gives up; None: nothing is collected.
    """

    def __init__(
        self,
        scheduler: Planner,
        runner: Runner,
        link: Link,
        *,
        depth: int = 1,
        clock: Clock | None = None,
        trace: TraceSink | None = None,
        grammars: Grammars | None = None,
        timer: StepTimer | None = None,
        feed: PageFeed | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.scheduler = scheduler
        self.runner = runner
        self.link = link
        self.depth = depth
        self.clock = WallClock() if clock is None else clock
        self.trace = NullTrace() if trace is None else trace
        self.grammars = NoGrammars() if grammars is None else grammars
        self.adapters = NoAdapters() if adapters is None else adapters
        self.meter = Meter()
        self.watch = StepWatch(lambda seen: None)
        """Set where a server may ask what steps do."""
        self.ring: Callable[[], RingTotals] = RingTotals
        """What was loaded for long contexts. Set where a runner loads blocks."""
        self.in_flight: deque[InFlight] = deque()
        self.feed = feed
        self.handover = Handover(lambda answer: None)
        """Set where pages go from engine to engine."""
        self._timer = timer or StepTimer(self.clock.now())
        self._deadlines = Deadlines()
        self._awaits_report = False
        """Nothing could be planned, nothing is in flight, and a message will report data from the disk or a grammar."""
        self.is_open = True
        self.exit_on_error = False
        """Raise the error of a step, instead of ending the step's requests and continuing."""

    def run(self) -> None:
        """Step until a `Shutdown` arrives."""
        while self.is_open:
            self.step()

    def step(self) -> None:
        """Do one turn of the loop."""
        if self.begin():
            self.finish()

    def begin(self) -> bool:
        """Do the first part of a turn: receive, plan and launch. Nothing that a step brings is seen in it.

        Returns:
            Whether the turn continues with `finish`, as the oldest step in flight is to be waited for.
        """
        if self.feed is not None:
            self.feed.flush()  # first, as the engine may sleep now, or has not begun
        self._receive()
        self.handover.go_on()
        self._expire()
        self._swap_adapters()
        plan = self.scheduler.schedule()
        if plan is not None:
            self._launch(plan)
        self._awaits_report = plan is None and not self.in_flight and self.scheduler.awaits_report
        return bool(self.in_flight) and (plan is None or len(self.in_flight) >= self.depth)

    def finish(self) -> None:
        """Wait for the oldest step in flight, and commit it."""
        self._commit_oldest()

    def close(self) -> None:
        """Close the trace, the runner and the compiler of grammars. No step may follow; may be called again."""
        try:
            self.grammars.close()
            self.adapters.close()
            self.trace.close()
        finally:
            self.runner.close()

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.scheduler.has_work

    @property
    def awaits_message(self) -> bool:
        """Whether the next turn can do nothing before a message comes."""
        return (self.is_idle or self._awaits_report) and not self.handover.is_busy

    def _receive(self) -> None:
        waits = self.awaits_message
        if waits and self.watch.has_steps:
            self._report()
        messages = self.link.receive(block=waits, timeout=self._timeout())
        if waits:
            self._timer.woke(self.clock.now())
        for message in messages:
            self._send(self._handle(message))

    def _timeout(self) -> float | None:
        """Return the seconds until the next deadline, if the loop waits for a report while requests are open."""
        due = self._deadlines.next if self._awaits_report else None
        return None if due is None else max(0.0, due - self.clock.now())

    def _handle(self, message: Message) -> list[Output]:
        match message:
            case Submit():
                return self._submit(message)
            case Abort(request_id, reason):
                return self.scheduler.abort(request_id, reason)
            case QueryStats(query_id):
                return self._answer(query_id)
            case FlushCache(query_id):
                self.scheduler.flush_cache()
                return self._answer(query_id)
            case Copied(done):
                return self.scheduler.copied(done)
            case BlocksLoaded(step, ready, error, lost_page):
                return self.scheduler.blocks_loaded(step, ready, error, lost_page)
            case Compiled(request_id, error):
                return self.scheduler.compiled(request_id, error)
            case LoadAdapter():
                self.adapters.read(message)
                return []
            case AdapterRead():
                self.adapters.answer(message)
                return []
            case UnloadAdapter(adapter):
                self.adapters.forget(adapter)
                return []
            case AdapterLoaded():
                return self._adapter_loaded(message)
            case OfferPages() | TakePages():
                self.handover.handle(message)
                return []
            case WatchSteps(is_on):
                self.watch.follow(is_on)
                return []
            case Shutdown():
                self.is_open = False
                return []

    def _submit(self, message: Submit) -> list[Output]:
        try:
            problem = self.adapters.problem(message.adapter) if message.adapter else None
            if problem is not None:
                raise ValueError(problem)
            self.scheduler.add(message)
        except DuplicateRequest:
            return []  # the stream of this id belongs to the request that came first
        except QueueFull as error:
            return [_refusal(message, FinishReason.OVERLOAD, error)]
        except NoTier as error:
            return [_refusal(message, FinishReason.TIER_UNAVAILABLE, error)]
        except ValueError as error:
            return [_refusal(message, FinishReason.ERROR, error)]
        self.meter.arrived(message.request_id, self.clock.now())
        self._deadlines.watch(message)
        known = self.grammars.compile(message.request_id, message.grammar) if message.grammar else None
        return [] if known is None else self.scheduler.compiled(known.request_id, known.error)

    def _swap_adapters(self) -> None:
        """Begin to load the adapters that requests wait for."""
        while swaps := self.scheduler.take_swaps():
            known = [self.adapters.swap(swap) for swap in swaps]
            for loaded in known:
                if loaded is not None:
                    self._send(self._adapter_loaded(loaded))

    def _adapter_loaded(self, loaded: AdapterLoaded) -> list[Output]:
        error = loaded.error
        if error is None:
            try:
                self.adapters.loaded(loaded.adapter)
            except ValueError as failure:
                error = str(failure)
        return self.scheduler.adapter_loaded(loaded.adapter, error)

    def _answer(self, query_id: int) -> list[Output]:
        stats = Stats(
            query_id,
            self.scheduler.occupancy(),
            self.trace.latest,
            self._totals(),
            self.scheduler.queued_prefill_tokens(),
            self.meter.progress(),
        )
        self.link.answer(stats)
        return []

    def _totals(self) -> Totals:
        return self.meter.totals()._replace(grammars=self.grammars.totals(), ring=self.ring())

    def _expire(self) -> None:
        """End the requests that are late, before a step is planned for them."""
        if self._deadlines:
            for request_id, reason in self._deadlines.due(self.clock.now()):
                self._send(self.scheduler.abort(request_id, reason))

    def _launch(self, plan: BatchPlan) -> None:
        """Launch a plan. If that fails, the steps in flight are committed first: plans end in the order in which they
        were made, and none is launched after one that never ran."""
        launched_at = self.clock.now()
        self.meter.planned(plan, launched_at)
        try:
            pending = self.runner.launch(plan)
        except Exception as error:
            if self.exit_on_error:
                raise
            launch_seconds = self.clock.now() - launched_at
            while self.in_flight:
                self._commit_oldest()
            self._fail(plan, StepTimes(launched_at, self.clock.now(), launch_seconds, 0.0), error, launched=False)
            self._timer.woke(self.clock.now())
        else:
            launch_seconds = self.clock.now() - launched_at
            self._timer.launched(launch_seconds)
            self.in_flight.append(InFlight(plan, pending, launched_at, launch_seconds))

    def _commit_oldest(self) -> None:
        plan, pending, launched_at, launch_seconds = self.in_flight.popleft()
        waits_at = self.clock.now()
        try:
            result = pending.wait()
        except Exception as error:
            if self.exit_on_error:
                raise
            self._fail(plan, self._times(launched_at, launch_seconds, waits_at), error)
        else:
            times = self._times(launched_at, launch_seconds, waits_at)
            self.trace.ended(plan, result, times)
            self.meter.ended(plan, result, times)
            self._send(self.scheduler.commit(plan, result, times.micros))
            self._watched(plan, result, times)

    def _fail(self, plan: BatchPlan, times: StepTimes, error: Exception, *, launched: bool = True) -> None:
        self.trace.ended(plan, None, times)
        self.meter.ended(plan, None, times)
        self._send(self.scheduler.fail(plan, describe(error), launched=launched))
        self._watched(plan, None, times)

    def _watched(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self.watch.ended(plan, result, times)
        if self.watch.is_due(times.ended_at):
            self._report()

    def _report(self) -> None:
        self.watch.report(self.scheduler.occupancy(), self.clock.now())

    def _times(self, launched_at: float, launch_seconds: float, waits_at: float) -> StepTimes:
        """Return the times of a step that was just waited for."""
        ended_at = self.clock.now()
        micros = self._timer.ended(ended_at, launch_seconds)
        return StepTimes(launched_at, ended_at, launch_seconds, ended_at - waits_at, micros)

    def _send(self, outputs: list[Output]) -> None:
        if outputs:
            self.meter.sent(outputs, self.clock.now())
            self._deadlines.forget(outputs)
            self.grammars.forget(output.request_id for output in outputs if output.finish_reason is not None)
            self.link.send(outputs)


def _refusal(message: Submit, reason: FinishReason, error: Exception) -> Output:
    """Return the only output of a request that is refused. It follows the tokens that an engine before has sent."""
    return Output(message.request_id, len(message.output_ids), (), 0, reason, str(error))


def describe(error: Exception) -> str:
    """Return the error that clients receive for a step that failed."""
    return f"the step failed: {type(error).__name__}: {error}"
