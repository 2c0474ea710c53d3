"""WaitingQueue: the order in which waiting requests are considered for admission.

    fcfs       in order of arrival, by turns where calls have several requests
    lpm        longest prefix match: the request with most of its prompt cached, on any tier, comes first
    priority   by priority, in order of arrival within one
    deadline   by the time at which the first token is due: the arrival, and the TTFT target of the class

Under the first three a preempted request stands at the head of its class, and a request that has waited for
`PROMOTE_AFTER` steps comes first, in order of arrival, so that none waits for ever. A deadline does not move, so that
each is the earliest at last; a preempted request keeps its own.

Arrival is that of calls: the requests of one call, such as the inputs of an embedding or the samples of a prompt, take
turns with those of other calls (`CallTurns`), so that a short call does not wait for all of a large one.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sluice.kv.manager import KVManager
from sluice.scheduler.prefix_match import reusable_len
from sluice.scheduler.request import Request
from sluice.types import SchedulerLimits

PROMOTE_AFTER = 2000
"""Steps of waiting after which a request goes before every other one, under every policy."""

WINDOW = 128
"""Requests considered in one step. With more waiting, lpm is fcfs: to match them all would cost more than it saves."""
CLASS_WINDOW = 32
"""Requests of each class that are considered all the same: urgent ones may share a step with the first prompt, however
many have an earlier deadline."""

TURN_SCALE = 1 << 20
"""Units of a turn in a token: with thousands of calls, each gets a small part of the service of one."""

Rank = tuple[bool, int, bool, int, int]


def is_by_deadline(limits: SchedulerLimits) -> bool:
    """Return whether requests go by their deadlines."""
    return limits.policy == "deadline"


@dataclass(slots=True)
class _WaitingCall:
    """A call with requests in the queue."""

    end: int
    """The turn of its next request."""
    waiting: int = 0


class CallTurns:
    """Gives waiting requests their turns, so that calls that wait share the service evenly, with few or many requests.

    It is start-time fair queueing (Goyal, Vin and Cheng, 1996) with a clock that runs as fast as each waiting call is
    served. A request's turn is the clock at its arrival, or, if that is later, the turn of the request of its call
    before it plus the tokens of that one's prompt. So calls of one request go in order of arrival.
    """

    def __init__(self) -> None:
        self._now = 0
        self._calls: dict[int, _WaitingCall] = {}

    def queued(self, request: Request) -> None:
        """Count a request that waits from now on, and give it a turn if it has none."""
        call = self._calls.setdefault(_call_of(request), _WaitingCall(self._now))
        call.waiting += 1
        if request.turn is None:
            request.turn = max(call.end, self._now)
            call.end = request.turn + len(request.tokens) * TURN_SCALE

    def started(self, request: Request) -> None:
        """Move the clock on by the share of what is served now that a waiting call has, if one more comes, before the
        request leaves the queue."""
        assert request.turn is not None, f"request {request.id} was never queued"
        share = len(request.tokens) * TURN_SCALE // (len(self._calls) + 1)
        self._now = max(self._now + share, request.turn)

    def left(self, request: Request) -> None:
        """Count a request that waits no longer."""
        key = _call_of(request)
        self._calls[key].waiting -= 1
        if not self._calls[key].waiting:
            del self._calls[key]


def _call_of(request: Request) -> int:
    return request.id if request.submit.call is None else request.submit.call


class WaitingQueue:
    """Waiting requests, sorted by rank: promoted ones, then by priority or deadline, then by arrival."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._policy = limits.policy
        self.by_deadline = is_by_deadline(limits)
        self._sign = 1 if limits.low_priority_values_first else -1
        self._requests: list[Request] = []
        self._by_class: dict[int, list[Request]] = {}
        """Waiting requests by class, if there are deadlines."""
        self.uncached_tokens = 0
        """Sum of `Request.uncached` over the waiting requests."""
        self._promoted: set[int] = set()
        self._turns = CallTurns()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def push(self, request: Request, step: int) -> None:
        """Queue a request, which waits from this step on."""
        request.waits_since = step
        self._turns.queued(request)
        self.uncached_tokens += request.uncached
        insort(self._requests, request, key=self.rank)
        if self.by_deadline:
            insort(self._by_class.setdefault(request.level, []), request, key=self.rank)

    def start(self, request: Request) -> None:
        """Take a request out of the queue because it gets a slot."""
        self._turns.started(request)
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Take a request out of the queue."""
        self._turns.left(request)
        self._requests.remove(request)
        if self.by_deadline:
            self._by_class[request.level].remove(request)
        self.uncached_tokens -= request.uncached
        self._promoted.discard(request.id)

    def set_uncached(self, request: Request, tokens: int) -> None:
        """Note how many tokens of a waiting request are not cached, counted anew."""
        self.uncached_tokens += tokens - request.uncached
        request.uncached = tokens

    def rank(self, request: Request) -> Rank:
        """Return the sort key of a request; smaller goes first."""
        promoted = request.id in self._promoted
        turn = 0 if promoted or request.turn is None else request.turn
        return not promoted, 0 if promoted else self.urgency(request), not request.was_running, turn, request.id

    def urgency(self, request: Request) -> int:
        """Return the deadline of a request, or its class of priority; smaller goes first."""
        return request.ttft_deadline if self.by_deadline else self.level(request)

    def level(self, request: Request) -> int:
        """Return the class of priority; smaller goes first. Under `fcfs` and `lpm` all requests are in one class."""
        if self.by_deadline:
            return request.level
        return self._sign * request.priority if self._policy == "priority" else 0

    def makes_way(self, running: Request, request: Request) -> bool:
        """Return whether a running request may be preempted for a waiting one: it is of a lower class, and if there are
        deadlines, it has the later one."""
        is_lower = self.level(running) > self.level(request)
        return is_lower and self.urgency(running) > self.urgency(request)

    def promote(self, step: int) -> None:
        """Move requests that have waited too long to the front. Those with deadlines are there in time."""
        if self.by_deadline:
            return
        late = [
            request
            for request in self._requests
            if step - request.waits_since >= PROMOTE_AFTER and request.id not in self._promoted
        ]
        if late:
            self._promoted.update(request.id for request in late)
            self._requests.sort(key=self.rank)

    def candidates(self, kv: KVManager) -> list[Request]:
        """Return the requests to consider in this step, in order."""
        window = list(islice(self._requests, WINDOW))
        if self._policy == "lpm" and len(self._requests) <= WINDOW:
            window.sort(
                key=lambda r: (r.id not in self._promoted, not r.was_running, -reusable_len(kv, r), r.turn or 0, r.id)
            )
        if self.by_deadline and len(self._requests) > WINDOW:
            window += self._beyond(window)
        return window

    def _beyond(self, window: list[Request]) -> list[Request]:
        """Return the first requests of classes of which the window has few, in order."""
        num = Counter(request.level for request in window)
        more = [r for level, requests in self._by_class.items() for r in requests[num[level] : CLASS_WINDOW]]
        return sorted(more, key=self.rank)
