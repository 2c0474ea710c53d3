"""Reservation: how much memory is kept for running requests, beyond the pages they hold.

    full    the whole prompt and output from the first chunk on: no request is ever preempted for want of memory
    ratio   the whole prompt, and a share of the output that sinks while all goes well and rises after a preemption

Under `ratio` a request whose prompt is not computed yet is counted with its whole output if its prompt is all
planned, since it was just admitted on that promise, and with none if it is not, since it makes no output yet.

A request that ignores its end is counted as others are, although its length is known. SGLang reserves all of it. In
simulations of 200 to 300 such requests on an H100 whose pool held 14 to 32 of them, that took 0 to 28% of the
throughput, and first tokens came up to half later, since many steps of a request need far less than its end. But no
stream paused for a preemption, where under `ratio` the longest pause took 0.6 to 23 s: `full` is for those who mind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sluice.scheduler.request import Request, Status
from sluice.types import SchedulerLimits

CLIPPED_OUTPUT = 4096
"""Most output tokens counted for one request under `ratio`: few requests use all that they may."""

START_RATIO = 0.7
"""Share of the output counted at the start, times `conservativeness`."""
FLOOR_SHARE = 0.14
"""Share of its start to which the ratio sinks."""
DECAY_STEPS = 600
"""Steps with decodes in which the ratio sinks to its lowest."""
RISE_TOKENS = 20
"""After a preemption the ratio is what the survivors have used of their output, plus this many tokens each."""

PROTECT_AFTER = 3
"""Preemptions after which a request is admitted and counted as under `full`, and is the last to be preempted again."""


class Reservation(Protocol):
    """A rule for how much memory is reserved."""

    def tokens(self, request: Request) -> int:
        """Return the tokens that a running request is to have pages for."""
        ...

    def tokens_at_admission(self, request: Request) -> int:
        """Return the tokens that there must be room for before a waiting request is started, cut or not."""
        ...

    def decoded(self) -> None:
        """Note that a step with decodes was planned."""
        ...

    def preempted(self, survivors: Iterable[Request]) -> None:
        """Note that memory ran out, and that these requests still run."""
        ...


class FullReservation:
    """All that a request may ever use."""

    def tokens(self, request: Request) -> int:
        return request.prompt_len + request.max_tokens

    def tokens_at_admission(self, request: Request) -> int:
        return request.prompt_len + request.max_tokens

    def decoded(self) -> None:
        pass

    def preempted(self, survivors: Iterable[Request]) -> None:
        pass


class RatioReservation:
    """A share of what a request may still use."""

    def __init__(self, conservativeness: float) -> None:
        self._start = min(1.0, START_RATIO * conservativeness)
        self.ratio = self._start

    def tokens(self, request: Request) -> int:
        known = len(request.tokens)
        if is_protected(request):
            return request.prompt_len + request.max_tokens
        if request.status in (Status.PARTIAL, Status.LOADING):
            return known
        share = 1.0 if request.is_prefilling else self.ratio
        return known + int(share * clipped_output(request))

    def tokens_at_admission(self, request: Request) -> int:
        if is_protected(request):
            return request.prompt_len + request.max_tokens
        return len(request.tokens) + clipped_output(request)

    def decoded(self) -> None:
        floor = FLOOR_SHARE * self._start
        self.ratio = max(floor, self.ratio - (self._start - floor) / DECAY_STEPS)

    def preempted(self, survivors: Iterable[Request]) -> None:
        used = wanted = 0
        for request in survivors:
            used += request.num_outputs + RISE_TOKENS
            wanted += request.max_tokens
        self.ratio = max(self.ratio, min(1.0, used / (wanted + 1)))


def is_protected(request: Request) -> bool:
    """Return whether a request was preempted so often that it is preempted last."""
    return request.preemptions >= PROTECT_AFTER


def clipped_output(request: Request) -> int:
    """Return the output tokens that a request may still make, as far as they are counted."""
    return min(request.max_tokens - request.num_outputs, CLIPPED_OUTPUT)


def reservation_of(limits: SchedulerLimits) -> Reservation:
    """Return the rule that the limits name."""
    return FullReservation() if limits.reserve == "full" else RatioReservation(limits.conservativeness)
