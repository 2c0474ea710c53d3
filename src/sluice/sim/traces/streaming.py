"""StreamedRows: the requests of a file too large for memory, read once from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sluice.sim.workload import Arrival

Row = TypeVar("Row")


class StreamedRows(Generic[Row]):
    """Requests that are read once, of which no more is kept than what later calls may ask for (see `windows.Between`).

    Args:
        rows: with their times, in order.
        make: makes a request of a row, if it is asked for.
    """

    def __init__(self, rows: Iterable[tuple[float, Row]], make: Callable[[Row, float], Arrival]) -> None:
        self._left = iter(rows)
        self._make = make
        self._kept: list[Arrival] = []
        """Those that were read and may be asked for again."""

    def __call__(self, start: float, end: float) -> list[Arrival]:
        found = [each for each in self._kept if each.time >= start]
        if not found or found[-1].time < end:
            for time, row in self._left:
                if time >= start:
                    found.append(self._make(row, time))
                    if time >= end:
                        break
        self._kept = found
        return [each for each in found if each.time < end]
