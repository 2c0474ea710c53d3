"""What a simulated replica publishes: what it has to do, now and then, and what its prefix cache stores and removes.

A router knows no more of it than it would of a server: how it was at its last moment of publishing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from sluice.engine.engine import Engine
from sluice.kv.events import EventLog, PageEvent
from sluice.routing.occupancy import ObservedOccupancy, PrefillSpeed
from sluice.scheduler.backlog import cached_anywhere, queued_prefill_tokens
from sluice.scheduler.state import SchedulerState
from sluice.sim.workload import Arrival

PUBLISH_SECONDS = 0.5


class PublishTimes(NamedTuple):
    """When a replica says what it has to do, in seconds."""

    every: float = PUBLISH_SECONDS
    first: float = 0.0


class Published(NamedTuple):
    """What a router learns of a replica."""

    events: tuple[PageEvent, ...] = ()
    """What its prefix cache has stored and removed, in order."""
    occupancy: ObservedOccupancy | None = None
    """The latest occupancy; None if none was published since."""
    taken_at: float = 0.0


class Publisher:
    """Looks into one engine at its times.

    Args:
        page_size: tokens.
    """

    def __init__(self, times: PublishTimes, page_size: int) -> None:
        self.log = EventLog(page_size)
        """Events of its prefix cache."""
        self._times = times
        self._speed = PrefillSpeed()
        self._latest = -math.inf
        self._taken: ObservedOccupancy | None = None

    def due(self, until: float) -> float | None:
        """Return the last of its moments before another one; None if that was published. Those before it would be of
        no use to a router that looks at `until`."""
        every, first = self._times
        if until == math.inf or until <= first:
            return None
        at = first + math.floor((until - first) / every) * every
        at = at if at < until else at - every
        return at if at > self._latest and at >= 0 else None

    def look(self, at: float, engine: Engine, state: SchedulerState, unseen: Iterable[Arrival]) -> None:
        """Note how an engine is at a moment.

        Args:
            unseen: requests that have arrived, and that the engine takes next.
        """
        self._latest = at
        kv, totals, full = state.kv, engine.meter.totals(), engine.scheduler.occupancy()
        queued = queued_prefill_tokens(state)
        waiting = list(unseen)
        for arrival in waiting:
            length = arrival.prompt.length
            queued += length - cached_anywhere(kv, array("i", arrival.tokens()), length - 1, arrival.namespace)
        self._taken = ObservedOccupancy(
            queued_prefill_tokens=queued,
            num_running=full.running + full.loading,
            num_waiting=full.waiting + full.compiling + full.held + len(waiting),
            free_tokens=(full.free_pages + full.cached_pages) * kv.page_size,
            seconds_per_prefill_token=self._speed.seen(totals.prefill_squares, totals.prefill_products),
            speed_weight=self._speed.weight,
            itl_margin=None if totals.itl is None else totals.itl.margin,
        )

    def take(self) -> Published | None:
        """Return what a router has not received yet; None if that is nothing."""
        events, occupancy, self._taken = self.log.take(), self._taken, None
        return Published(events, occupancy, self._latest) if events or occupancy is not None else None
