"""Decides which requests enter a new engine: all at once, or one at a time to find the one that kills engines.

A request is a suspect if it was in flight when two engines died and got no token in between, or if it was in flight
when an engine died and no request had got a token since the death before. Suspects enter one at a time, each when the
one before has got a token or has ended; all other requests wait until no suspect is left. If an engine dies meanwhile,
the suspect that entered last is the first to enter the next engine, alone. A request is blamed, and ended, only if an
engine dies while it is alone there. Finding it costs at most two more engines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

MAX_DEATHS = 2
"""Deaths that make a request a suspect, or that a lone request is blamed for even if it was not known in flight."""


@dataclass(slots=True)
class _Record:
    """The engines that died with a request since its last token."""

    deaths: int = 0
    """Deaths of engines with the request in flight."""
    lone_deaths: int = 0
    """Deaths of engines that had no other request."""


class Quarantine:
    """The open requests of a client, by id: which are in the engine, and which may enter next."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._outside: dict[int, None] = {}
        """Requests outside the engine in order of arrival, suspects included."""
        self._inside: dict[int, None] = {}
        """Requests inside the engine in the order in which they entered."""
        self._suspects: list[int] = []
        """Suspects outside the engine, in the order in which they will enter."""
        self._on_trial: int | None = None
        """The suspect that entered last and has got no token yet."""
        self._no_token_since_death = False

    def add(self, request_id: int) -> None:
        """Register a new request, outside the engine."""
        self._records[request_id] = _Record()
        self._outside[request_id] = None

    def got_token(self, request_id: int) -> None:
        """Clear a request of suspicion: the engine gave it a token and lives."""
        self._no_token_since_death = False
        record = self._records[request_id]
        record.deaths = record.lone_deaths = 0
        if request_id == self._on_trial:
            self._on_trial = None

    def remove(self, request_id: int) -> None:
        """Forget a request that has ended or was aborted."""
        del self._records[request_id]
        self._inside.pop(request_id, None)
        self._outside.pop(request_id, None)
        if request_id in self._suspects:
            self._suspects.remove(request_id)
        if request_id == self._on_trial:
            self._on_trial = None

    def admit(self) -> Sequence[int]:
        """Return the requests that enter the engine now, in order."""
        if self._on_trial is not None or not self._outside:
            return ()
        if self._suspects:
            self._on_trial = self._suspects.pop(0)
            admitted = [self._on_trial]
            del self._outside[self._on_trial]
        else:
            admitted = list(self._outside)
            self._outside.clear()
        self._inside.update(dict.fromkeys(admitted))
        return admitted

    def engine_died(self, in_flight: Collection[int]) -> int | None:
        """Take all requests out of an engine that died.

        Args:
            in_flight: requests in its unfinished steps; empty if unknown.

        Returns:
            The request that is to blame, if that is certain now. The caller ends and removes it.
        """
        inside, on_trial = list(self._inside), self._on_trial
        self._inside.clear()
        self._outside = dict.fromkeys(sorted(self._records))
        self._on_trial = None
        if not inside:
            return None  # it died before it received a request
        is_second_in_a_row, self._no_token_since_death = self._no_token_since_death, True
        if on_trial is not None and inside == [on_trial]:
            record = self._records[on_trial]
            record.lone_deaths += 1
            if on_trial in in_flight or record.lone_deaths >= MAX_DEATHS:
                return on_trial
        involved = [request_id for request_id in inside if request_id in in_flight] or inside
        for request_id in involved:
            self._records[request_id].deaths += 1
        found = [each for each in involved if is_second_in_a_row or self._records[each].deaths >= MAX_DEATHS]
        first = [] if on_trial is None else [on_trial]
        self._suspects = list(dict.fromkeys([*first, *sorted({*self._suspects, *found})]))
        return None
