"""Who is let into an engine after others have died: all at once, or one by one to find the one that they die of.

A request is suspected if engines died while it was in flight, twice without a token for it in between, or twice in a
row without a token for anybody. Suspects are let in one at a time, each when the one before has got a token or has
ended; everybody else waits until all suspects are through. If an engine dies then, the newest is the first to be tried
in the next one, alone; one that an engine dies of while it is alone is guilty. So a request is only ever given up for
what it did by itself, and it costs at most two engines more to find it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

STRIKES = 2
"""Deaths that make a suspect."""


@dataclass(slots=True)
class _Record:
    """What is held against a request."""

    strikes: int = 0
    """Engines that died with it in flight since its last token."""
    lone_deaths: int = 0
    """Engines that died with nobody else in them before it was in flight."""


class Quarantine:
    """The open requests of a client, by id: which of them are in the engine, and which may go there next."""

    def __init__(self) -> None:
        self._open: dict[int, _Record] = {}
        self._outside: dict[int, None] = {}
        """In order of arrival; suspects too."""
        self._inside: dict[int, None] = {}
        """In the order in which they were let in."""
        self._suspects: list[int] = []
        """Still to be let in, the next one first."""
        self._on_trial: int | None = None
        self._is_barren = False
        """No token for anybody since the last death that counts."""

    def opened(self, request_id: int) -> None:
        """A new request."""
        self._open[request_id] = _Record()
        self._outside[request_id] = None

    def got_token(self, request_id: int) -> None:
        """The engine went on with it."""
        self._is_barren = False
        record = self._open[request_id]
        record.strikes = record.lone_deaths = 0
        if request_id == self._on_trial:
            self._on_trial = None

    def closed(self, request_id: int) -> None:
        """It has ended, or nobody wants it any more."""
        del self._open[request_id]
        self._inside.pop(request_id, None)
        self._outside.pop(request_id, None)
        if request_id in self._suspects:
            self._suspects.remove(request_id)
        if request_id == self._on_trial:
            self._on_trial = None

    def let_in(self) -> Sequence[int]:
        """Who is to be sent to the engine now, in order."""
        if self._on_trial is not None or not self._outside:
            return ()
        if self._suspects:
            self._on_trial = self._suspects.pop(0)
            chosen = [self._on_trial]
            del self._outside[self._on_trial]
        else:
            chosen = list(self._outside)
            self._outside.clear()
        self._inside.update(dict.fromkeys(chosen))
        return chosen

    def engine_died(self, in_flight: Collection[int]) -> int | None:
        """Everybody is out again.

        Args:
            in_flight: requests that it was computing for; empty if none is known.

        Returns:
            The guilty one, if it is known now. The caller ends and closes it.
        """
        inside, on_trial = list(self._inside), self._on_trial
        self._inside.clear()
        self._outside = dict.fromkeys(sorted(self._open))
        self._on_trial = None
        if not inside:
            return None  # it died before it was asked for anything
        was_barren, self._is_barren = self._is_barren, True
        flying = [request_id for request_id in inside if request_id in in_flight] or inside
        if on_trial is not None and inside == [on_trial]:
            record = self._open[on_trial]
            record.lone_deaths += 1
            if on_trial in in_flight or record.lone_deaths >= STRIKES:
                return on_trial
        for request_id in flying:
            self._open[request_id].strikes += 1
        accused = [each for each in flying if was_barren or self._open[each].strikes >= STRIKES]
        self._suspect([on_trial] if on_trial is not None else [], accused)
        return None

    def _suspect(self, first: Iterable[int], others: Iterable[int]) -> None:
        """In the order of arrival, but for the first."""
        rest = sorted({*self._suspects, *others})
        self._suspects = list(dict.fromkeys([*first, *rest]))
