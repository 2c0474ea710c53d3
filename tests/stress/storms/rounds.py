"""Runs a storm: the calm twins first, then rounds of blows with a pause after each, then the end."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.storms.blows import BLOWS, ENGINE_SECONDS, Blow, Target, remove, until_gone
from stress.storms.checks import Rest, at_rest, grown, left_behind
from stress.storms.load import Load, Tally, twins_of
from stress.storms.requests import StormRequest, requests_of
from stress.storms.server import ServerGone, StormServer

AT_ONCE = 4
"""Requests that the calm server answers at once."""
YARDSTICK = 12
"""Requests that an engine serves before its memory is measured."""


@dataclass(frozen=True)
class Plan:
    """What a storm does."""

    minutes: float | None
    """Time in which blows are struck; None: a single round, whatever time it takes."""
    seed: int
    requests: int = 240
    """Different requests. Clients send them again and again."""
    clients: int = 6
    options: tuple[str, ...] = ()
    """Further options of the server."""
    blows: tuple[Blow, ...] = tuple(BLOWS)
    measures_memory: bool = True
    log: Path | None = None
    """File for what the servers log."""


@dataclass
class Record:
    """What a storm did and found."""

    struck: dict[str, dict[str, float]] = field(default_factory=dict)
    rests: list[Rest] = field(default_factory=list)
    rounds: int = 0
    seconds: float = 0.0
    engines: int = 0
    fronts: int = 0
    tally: Tally = field(default_factory=Tally)

    def blow(self, name: str, engines: int, seconds: float) -> None:
        counts = self.struck.setdefault(name, {"struck": 0, "engines replaced": 0, "longest recovery, s": 0.0})
        counts["struck"] += 1
        counts["engines replaced"] += engines
        counts["longest recovery, s"] = round(max(counts["longest recovery, s"], seconds), 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "seconds": round(self.seconds),
            "engines": self.engines,
            "fronts": self.fronts,
            "blows": self.struck,
            "requests": {label: dict(counts) for label, counts in self.tally.outcomes.items()},
            "failed by name": dict(self.tally.errors.most_common(20)),
            "pauses": [rest._asdict() for rest in self.rests],
            "problems": self.tally.problems,
        }


async def storm(plan: Plan, show: Callable[[str], None] = lambda line: None) -> Record:
    """Run a storm in a temporary folder.

    Args:
        show: receives a line about each thing that happens.
    """
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    requests = requests_of(plan.seed, plan.requests)
    server = StormServer(folder, plan.options, plan.log)
    try:
        await server.start()
        show(f"calm: {len(requests)} requests")
        twins = await twins_of(server, requests, AT_ONCE)
        load = Load(server, requests, twins, plan.seed, show)
        return await Storm(plan, server, load, requests[:YARDSTICK], show).run()
    finally:
        server.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


class Storm:
    """The rounds of one storm.

    Args:
        yardstick: requests that every engine serves whose memory is measured.
    """

    def __init__(
        self,
        plan: Plan,
        server: StormServer,
        load: Load,
        yardstick: Sequence[StormRequest],
        show: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._server = server
        self._load = load
        self._yardstick = yardstick
        self._show = show
        self._record = Record(tally=load.tally)
        self._start = time.monotonic()

    async def run(self) -> Record:
        """Strike rounds of blows until the time is over, then end the server."""
        record = self._record
        self._load.during = "the first pause"
        await self._guarded(self._pause)
        while not self._is_over:
            await self._round(record.rounds)
            record.rounds += 1
        await self._end()
        record.seconds = time.monotonic() - self._start
        record.engines, record.fronts = self._server.engines, self._server.life
        return record

    @property
    def _elapsed(self) -> float:
        """The share of the time that has passed; with no time, the rounds that are over."""
        if self._plan.minutes is None:
            return float(self._record.rounds)
        return (time.monotonic() - self._start) / (60 * self._plan.minutes)

    @property
    def _is_over(self) -> bool:
        return self._elapsed >= 1

    async def _round(self, number: int) -> None:
        """Strike every blow once, in an order of this round's own, then pause."""
        draw = random.Random(f"{self._plan.seed} round {number}")
        self._load.start(self._plan.clients)
        for blow in draw.sample(self._plan.blows, len(self._plan.blows)):
            await asyncio.sleep(draw.uniform(0.2, 1.0))
            if not (self._is_over or (blow.replaces_front and self._elapsed > 0.5)):
                await self._strike(blow, random.Random(f"{self._plan.seed} round {number} {blow.name}"))
        await self._load.stop()
        self._load.during = f"the pause after round {number + 1}"
        await self._guarded(self._pause)

    async def _strike(self, blow: Blow, draw: random.Random) -> None:
        self._load.during = blow.name
        engines, start = self._server.engines, time.monotonic()
        target = Target(self._server, self._load, self._plan.clients, draw)

        async def strike_and_recover() -> None:
            await blow.strike(target)
            await self._server.until_ready(ENGINE_SECONDS)

        await self._guarded(strike_and_recover)
        recovered = time.monotonic() - start
        await self._load.settled()
        self._record.blow(blow.name, self._server.engines - engines, recovered)
        self._show(f"{blow.name}: {recovered:.1f} s; {dict(self._load.tally.outcomes['all'])}")

    async def _guarded(self, work: Callable[[], Any]) -> None:
        """Do something to the server. If it does not survive, note that and start it afresh."""
        try:
            await work()
        except (ServerGone, OSError) as error:
            self._load.tally.problem(
                "the server", str(error), self._load.during, log="\n".join(list(self._server.log)[-15:])
            )
            self._server.is_ending = True
            self._server.kill_all()
            await self._server.end(signal.SIGKILL)
            remove(self._server.page_file)
            self._server.has_tier_trouble = self._server.is_limited = False
            await self._server.start()

    async def _pause(self) -> None:
        """Check that everything is back, and measure memory."""
        if self._plan.measures_memory:
            await self._renew_engine()
        rest, missing = await at_rest(self._server, self._record.rests[0] if self._record.rests else None)
        self._record.rests.append(rest)
        for text in missing:
            self._load.tally.problem("not back", text, self._load.during)
        self._show(f"a pause: {rest}")

    async def _renew_engine(self) -> None:
        """Replace the engine, and let the new one serve the yardstick: all engines that are measured are of one age."""
        engine = self._server.engine
        if engine is not None:
            os.kill(engine.pid, signal.SIGKILL)
            await until_gone(engine)
        await self._server.until_ready(ENGINE_SECONDS)
        await self._load.each(self._yardstick, AT_ONCE)

    async def _end(self) -> None:
        """End the server, which must leave nothing behind."""
        problem = self._load.tally.problem
        try:
            if (status := await self._server.end(signal.SIGTERM)) != 0:
                problem("the server", f"ended with status {status}: {self._server.last_line}", "the end")
        except ServerGone as error:
            problem("the server", str(error), "the end")
        for text in left_behind(self._server):
            problem("not back", text, "the end")
        # Without renewed engines their ages differ, and with them what they take.
        for text in grown(self._record.rests) if self._plan.measures_memory else ():
            problem("memory", text, "the end")
