"""Records, results and a clock made by hand, for tests of the bench package."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sluice.bench.options import BenchOptions, options_from
from sluice.bench.records import CountedBy, Failure, Record, Run, TokenArrival
from sluice.bench.results import FORMAT, BenchResult


class ManualTimer:
    """A client's time that a test moves: nothing in a test waits, and every latency is exact."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        self.looks = 0
        """How often the time was read: a client reads it when bytes have come."""
        self._looked = asyncio.Event()

    def now(self) -> float:
        self.looks += 1
        self._looked.set()
        return self._now

    async def looked(self, count: int) -> None:
        """Wait until the time was read `count` times in all."""
        while self.looks < count:
            self._looked.clear()
            await self._looked.wait()

    async def until(self, moment: float) -> None:
        if moment > self._now:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((moment, future))
            await future

    def advance(self, moment: float) -> None:
        """It is now `moment`; who waited for it, or for less, goes on."""
        assert moment >= self._now, f"{moment} is before {self._now}"
        self._now = moment
        due = [item for item in self._waiting if item[0] <= moment]
        self._waiting = [item for item in self._waiting if item[0] > moment]
        for _, future in sorted(due, key=lambda item: item[0]):
            if not future.done():
                future.set_result(None)


def record(
    *arrivals: float | tuple[float, int],
    due: float = 0.0,
    sent: float | None = None,
    ended: float | None = None,
    kind: str = "short",
    failure: Failure | None = None,
    max_tokens: int | None = None,
    **rest: object,
) -> Record:
    """A request whose tokens came at these times: a number for one token, a pair for several at once."""
    found = tuple(TokenArrival(*item) if isinstance(item, tuple) else TokenArrival(item, 1) for item in arrivals)
    tokens = sum(item.tokens for item in found)
    last = found[-1].at if found else due
    started = due if sent is None else sent
    fields: dict[str, object] = {
        "session": 0,
        "turn": 0,
        "background": False,
        "prompt_tokens": 10,
        "accepted": started,
        "counted_by": CountedBy.USAGE,
    }
    return Record(
        **(fields | rest),  # type: ignore[arg-type]
        kind=kind,
        max_tokens=tokens if max_tokens is None else max_tokens,
        due=due,
        sent=started,
        ended=last if ended is None else ended,
        arrivals=found,
        failure=failure,
    )


def run_of(records: Sequence[Record]) -> Run:
    """A run that had these requests."""
    return Run("2026-01-01T00:00:00+00:00", tuple(records))


def result(
    *runs: Sequence[Record], options: BenchOptions | None = None, url: str = "http://test", **workload: object
) -> BenchResult:
    """A result of these runs."""
    chosen = options or options_from({})
    return BenchResult(
        FORMAT,
        {"workload": vars(chosen.workload) | workload, "target": {}, "run": vars(chosen.run)},
        {"url": url, "model": "toy"},
        {"sluice": "0"},
        {"cores": 2},
        tuple(map(run_of, runs)),
    )
