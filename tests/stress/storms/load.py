"""Clients that send requests until the storm is over, and compare each answer with its calm twin."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.types.request_limits import NO_TIER
from stress.storms.answers import Answer, answer_of, differences
from stress.storms.client import Manner, Reply, send
from stress.storms.requests import StormRequest
from stress.storms.server import StormServer

ANSWER_SECONDS = 600.0
"""After which an answer counts as lost."""
ATTEMPTS = 200
"""After which a request that was always refused counts as lost."""
RETRY_SECONDS = 0.5
"""After which a client tries again if there was no answer that says when."""
LONGEST_WAIT = 2.0
"""Seconds that a refused client waits at most, whatever `Retry-After` says."""
SLOW = Manner("reads slowly", pause=0.02)
LEAVES = "leaves"
SAME, REFUSED, LEFT, CUT, FAILED = "same", "refused", "left", "cut", "failed by name"
BAD = ("lost", "repeated", "changed")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attempt, or of a request."""

    kind: str
    problem: str = ""
    wait: float = 0.0
    """Seconds after which to try again."""


@dataclass
class Tally:
    """What was tried, and what became of it."""

    outcomes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """For each label of requests and manner of clients, how many had each outcome."""
    problems: list[dict[str, str]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    """Messages of requests that failed by name, with # for numbers."""
    show: Callable[[str], None] = lambda line: None
    """Receives a line about each problem."""

    def count(self, request: StormRequest, manner: Manner, outcome: Outcome, during: str) -> None:
        for label in ("all", *request.labels, f"client {manner.label}"):
            self.outcomes[label][outcome.kind] += 1
        if outcome.kind == FAILED:
            self.errors[outcome.problem] += 1
        if outcome.kind in BAD:
            self.problem(outcome.kind, outcome.problem, during, request=request.name, labels=", ".join(request.labels))

    def problem(self, kind: str, text: str, during: str, **more: str) -> None:
        self.problems.append({"kind": kind, "problem": text, "during": during} | more)
        self.show(f"{kind}: {text} ({during}) {more}")


class Load:
    """Clients of one server.

    Args:
        twins: by the names of `requests`, their answers in calm.
        seed: decides which client sends what, and how it reads.
        show: receives a line about each problem.
    """

    def __init__(
        self,
        server: StormServer,
        requests: Sequence[StormRequest],
        twins: Mapping[str, Answer],
        seed: int,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.tally = Tally(show=show)
        self.during = "calm"
        """The blow that is being struck, or was last."""
        self._server = server
        self._requests = requests
        self._twins = twins
        self._draw = random.Random(seed)
        self._next = self._order()
        self._clients: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def start(self, clients: int) -> None:
        """Let clients send one request after the other."""
        self._is_over = False
        self._clients = [asyncio.create_task(self._client()) for _ in range(clients)]

    async def stop(self) -> None:
        """Wait until every client has its answer."""
        self._is_over = True
        await asyncio.gather(*self._clients)
        self._clients = []

    async def burst(self, count: int, manner: Manner | None = None) -> None:
        """Send requests all at once, and wait for their answers."""
        await asyncio.gather(*(self._tracked(next(self._next), manner or self._manner()) for _ in range(count)))

    async def each(self, requests: Sequence[StormRequest], at_once: int) -> None:
        """Send each request once, and wait for the answers."""
        limit = asyncio.Semaphore(at_once)

        async def one(request: StormRequest) -> None:
            async with limit:
                await self._tracked(request, Manner())

        await asyncio.gather(*map(one, requests))

    async def settled(self) -> None:
        """Wait until every request that is open now has its answer."""
        if open_now := set(self._open):
            await asyncio.wait(open_now)

    def _order(self) -> Iterator[StormRequest]:
        while True:
            yield from self._draw.sample(self._requests, len(self._requests))

    def _manner(self) -> Manner:
        kind = self._draw.random()
        if kind < 0.1:
            return SLOW
        return self.leaving() if kind < 0.2 else Manner()

    def leaving(self) -> Manner:
        """Return a client that leaves in the middle of its answer."""
        return Manner(LEAVES, leaves_after=self._draw.randint(0, 6))

    async def _client(self) -> None:
        while not self._is_over:
            await self._tracked(next(self._next), self._manner())

    async def _tracked(self, request: StormRequest, manner: Manner) -> None:
        task = asyncio.create_task(self._serve(request, manner))
        self._open.add(task)
        try:
            await task
        finally:
            self._open.discard(task)

    async def _serve(self, request: StormRequest, manner: Manner) -> None:
        """Send a request until it is served, and count what came of it."""
        for _ in range(ATTEMPTS):
            outcome = await self.attempt(request, manner)
            self.tally.count(request, manner, outcome, self.during)
            if outcome.kind not in (REFUSED, CUT):
                return
            await asyncio.sleep(outcome.wait)
        self.tally.count(request, manner, Outcome("lost", f"refused {ATTEMPTS} times"), self.during)

    async def attempt(self, request: StormRequest, manner: Manner) -> Outcome:
        """Send a request once."""
        life, was_ending = self._server.life, self._server.is_ending
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await send(self._server.port, "POST", request.path, request.content(), manner)
        except TimeoutError:
            return Outcome("lost", f"no end after {ANSWER_SECONDS:g} s")
        may_be_cut = was_ending or self._server.is_ending or self._server.life != life
        try:
            answer = answer_of(request, reply)
        except (ValueError, KeyError, TypeError) as error:
            return Outcome("changed", f"{error}: {reply.body[-300:]!r}")
        return self._judge(request, reply, answer, may_be_cut=may_be_cut)

    def _judge(self, request: StormRequest, reply: Reply, answer: Answer, *, may_be_cut: bool) -> Outcome:
        """Return what one attempt came to."""
        if reply.status in (429, 503) and answer.code != NO_TIER:
            return _refused(reply)
        if reply.status == 200:
            for difference in differences(self._twins[request.name], answer):
                return Outcome(difference.kind, str(difference))
        if answer.error is not None:
            return self._failed(request, answer, may_be_cut=may_be_cut)
        if reply.has_left:
            return Outcome(LEFT)
        if answer.is_finished and reply.status == 200:
            return Outcome(SAME)
        if reply.is_refused and (may_be_cut or self._server.is_limited):
            return Outcome(REFUSED, wait=RETRY_SECONDS)
        if may_be_cut or (not reply.status and self._server.is_limited):
            return Outcome(CUT, wait=RETRY_SECONDS)
        return Outcome("lost", f"status {reply.status} ended after {len(reply.body)} bytes: {reply.error}")

    def _failed(self, request: StormRequest, answer: Answer, *, may_be_cut: bool) -> Outcome:
        if may_be_cut:
            return Outcome(CUT, wait=RETRY_SECONDS)
        if answer.code == NO_TIER and request.is_long and self._server.has_tier_trouble:
            return Outcome(FAILED, re.sub("[0-9a-f]*[0-9][0-9a-f]*", "#", answer.error or ""))
        return Outcome("lost", f"{answer.code}: {answer.error}")


def _refused(reply: Reply) -> Outcome:
    if "retry-after" not in reply.headers:
        return Outcome("lost", f"status {reply.status} without Retry-After: {reply.body[:300]!r}")
    return Outcome(REFUSED, wait=min(LONGEST_WAIT, float(reply.headers["retry-after"])))


async def twins_of(server: StormServer, requests: Sequence[StormRequest], at_once: int) -> dict[str, Answer]:
    """Return the answers of an undisturbed server, by the names of the requests.

    Raises:
        ValueError: a request is not answered with 200, or not to its end.
    """
    limit = asyncio.Semaphore(at_once)

    async def twin(request: StormRequest) -> Answer:
        async with limit:
            for _ in range(ATTEMPTS):  # those beside it may fill the queue
                reply = await send(server.port, "POST", request.path, request.content())
                if reply.status != 503:
                    break
                await asyncio.sleep(RETRY_SECONDS)
        answer = answer_of(request, reply)
        if reply.status != 200 or answer.error is not None or not answer.is_finished:
            raise ValueError(f"request {request.name} has no calm twin: status {reply.status}, {answer.error}")
        return answer

    answers = await asyncio.gather(*(twin(request) for request in requests))
    return {request.name: answer for request, answer in zip(requests, answers, strict=True)}
