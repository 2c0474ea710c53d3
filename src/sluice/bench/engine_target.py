"""The engine in this process, as a target: its loop on a thread of its own, tokens timed where they leave it."""

from __future__ import annotations

import asyncio
import itertools
import queue
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from sluice.bench.driver import Earlier, Exchange, MeasuredAnswer, Timer
from sluice.bench.records import CountedBy, Failure, TokenArrival
from sluice.bench.workload import Turn
from sluice.engine.clock import micros_at
from sluice.engine.messages import Message, Shutdown, Stats
from sluice.types import Output, SamplingParams, Submit
from sluice.types.request_limits import LimitError, Limits


class Loop(Protocol):
    """An engine: Sluice's, or another one behind the same link (`benchmarks/peers`)."""

    def run(self) -> None:
        """Serve what the link brings until it brings `Shutdown`."""

    def close(self) -> None:
        """Run no more steps. A second call does nothing."""


@dataclass(slots=True, eq=False)
class EngineExchange:
    """One request. The engine's thread fills it; the client reads it once `done` is set."""

    sent: float
    prompt_tokens: int
    accepted: float | None = None
    ended: float = 0.0
    arrivals: list[TokenArrival] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    last: Output | None = None
    refusal: str | None = None
    done: Future[None] = field(default_factory=Future)

    def take(self, output: Output, now: float) -> None:
        if output.token_ids:
            self.arrivals.append(TokenArrival(now, len(output.token_ids)))
            self.token_ids += output.token_ids
        if output.finish_reason is not None:
            self.last = output
            self.end(now)

    def refuse(self, reason: str, now: float) -> None:
        self.refusal = reason
        self.end(now)

    def end(self, now: float) -> None:
        self.ended = now
        with suppress(InvalidStateError):  # the client has given up waiting
            self.done.set_result(None)

    def answer(self) -> MeasuredAnswer:
        failure = reason = None
        if self.last is None:
            assert self.refusal is not None, "a request ends with an output or a refusal"
            failure = Failure("engine", self.refusal)
        elif self.last.finish_reason is not None and self.last.finish_reason.is_failure:
            failure = Failure("engine", self.last.error or "the request was aborted")
        else:
            reason = self.last.finish_reason
        return MeasuredAnswer(
            arrivals=tuple(self.arrivals),
            token_ids=tuple(self.token_ids),
            counted_by=CountedBy.IDS,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=None if self.last is None else max(0, self.last.num_cached_tokens),
            finish_reason=reason,
            failure=failure,
        )


class ThreadLink:
    """The engine's link to other threads."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._open: dict[int, EngineExchange] = {}
        self._gone: str | None = None
        self._lock = threading.Lock()
        """Held so that a request is either open when the engine ends, or is refused at once."""

    def submit(self, submit: Submit, exchange: EngineExchange) -> None:
        with self._lock:
            if self._gone is not None:
                exchange.refuse(self._gone, self._timer.now())
                return
            self._open[submit.request_id] = exchange
        self._inbox.put(submit)

    def shut_down(self) -> None:
        self._inbox.put(Shutdown())

    def fail_all(self, reason: str) -> None:
        """End all open requests, and refuse later ones: the engine has ended."""
        with self._lock:
            self._gone = reason
            lost, self._open = list(self._open.values()), {}
        for exchange in lost:
            exchange.refuse(reason, self._timer.now())

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        found = []
        if block:
            with suppress(queue.Empty):
                found.append(self._inbox.get(timeout=timeout))
        while not self._inbox.empty():
            found.append(self._inbox.get())
        return found

    def post(self, message: Message) -> None:
        self._inbox.put(message)

    def send(self, outputs: Sequence[Output]) -> None:
        now = self._timer.now()
        for output in outputs:
            exchange = self._open.get(output.request_id)
            if exchange is None:
                continue
            if output.finish_reason is not None:
                del self._open[output.request_id]
            exchange.take(output, now)

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"no request for statistics was sent, got {stats}")


@dataclass(slots=True)
class EngineTarget:
    """Requests to the engine behind a link."""

    link: ThreadLink
    limits: Limits
    eos_ids: frozenset[int]
    timer: Timer
    temperature: float = 0.0
    ignore_eos: bool = False
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def prepare(self, turn: Turn, earlier: Sequence[Earlier]) -> tuple[tuple[int, ...], int]:
        history = tuple(itertools.chain.from_iterable((*each.turn.prompt, *each.answer.token_ids) for each in earlier))
        return history + turn.prompt, turn.max_tokens

    async def send(self, prepared: object) -> Exchange:
        assert isinstance(prepared, tuple)
        prompt, max_tokens = prepared
        exchange = EngineExchange(self.timer.now(), len(prompt))
        try:
            room = self.limits.check(prompt, max_tokens)
        except LimitError as error:
            exchange.refuse(str(error), self.timer.now())
        else:
            params = SamplingParams(max_tokens=max_tokens, temperature=self.temperature, ignore_eos=self.ignore_eos)
            sampling = params.resolved(eos_ids=self.eos_ids, room=room, seed=secrets.randbits(63))
            self.link.submit(Submit(next(self.ids), prompt, sampling, arrived=micros_at(self.timer.now())), exchange)
            exchange.accepted = self.timer.now()
        await asyncio.wrap_future(exchange.done)
        return Exchange(exchange.sent, exchange.accepted, exchange.ended, exchange.answer)


@contextmanager
def running(engine: Loop, link: ThreadLink) -> Iterator[None]:
    """Run an engine's loop on a thread, and stop it at the end. If it fails, all requests fail, later ones too."""

    def loop() -> None:
        reason = "the engine has ended"
        try:
            with closing(engine):
                engine.run()
        except Exception as error:  # reported with every request that it takes down
            reason = f"the engine failed: {type(error).__name__}: {error}"
        link.fail_all(reason)

    thread = threading.Thread(target=loop, name="engine", daemon=True)
    thread.start()
    try:
        yield
    finally:
        link.shut_down()
        thread.join()
