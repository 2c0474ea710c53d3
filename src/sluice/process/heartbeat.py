"""The engine's heartbeat in shared memory.

The heartbeat is a file of 64-bit integers that both processes map. The engine writes and the server reads at any time,
so an engine that hangs can still be looked at. Each number is written in one piece, and stays readable after the
writer's death. `liveness` decides from it whether an engine is alive.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from sluice.engine.heartbeat import Heartbeat, LoadingPart, Phase

MAX_IN_FLIGHT = 1 << 16
"""Ids that fit. If more requests are in flight, none is recorded."""
TICKS, PHASE, STEP, STEPS_DONE, TOKENS, PART, LOADED, TO_LOAD, IN_FLIGHT = range(9)
IDS = IN_FLIGHT + 1
SIZE = 8 * (IDS + MAX_IN_FLIGHT)


class Reading(NamedTuple):
    """The numbers of a heartbeat, counted from the start of the process."""

    ticks: int
    phase: Phase
    step: int
    """Number of the step launched last, -1 before the first."""
    steps_done: int
    tokens: int
    """Tokens computed in the steps done, prompts included."""
    part: LoadingPart = LoadingPart.STARTING
    """What it does while it loads."""
    loaded: int = 0
    """How much of this part is done."""
    to_load: int = 0
    """How much there is to do in this part; 0 if that is unknown."""

    def progress(self) -> str:
        """Return in words how far it has loaded."""
        share = f", {100 * self.loaded // self.to_load}%" if self.to_load else ""
        return f"{self.part.name.lower()}{share}"


class SharedHeartbeat(Heartbeat):
    """A heartbeat in a mapped file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        self._numbers = self._bytes.cast("q")

    @classmethod
    def create(cls, path: Path) -> None:
        """Create the file. All of it is written, since on a full disk a hole in it would kill its readers (SIGBUS).

        Raises:
            OSError: it exists, or there is no space.
        """
        numbers = array("q", bytes(SIZE))
        numbers[STEP] = -1
        with path.open("xb") as file:
            file.write(numbers)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file.

        Raises:
            OSError: there is no such file.
        """
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), SIZE))

    def loading(self, part: LoadingPart, done: int = 0, total: int = 0) -> None:
        self._numbers[TO_LOAD] = 0  # a reader never sees more done than there is
        self._numbers[PART] = part
        self._numbers[LOADED] = done
        self._numbers[TO_LOAD] = total

    def tick(self, phase: Phase) -> None:
        self._numbers[PHASE] = phase
        self._numbers[TICKS] += 1

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        ids = array("q", request_ids)
        numbers = self._numbers
        numbers[IN_FLIGHT] = 0  # if the process dies here, no request is recorded
        if len(ids) <= MAX_IN_FLIGHT:
            numbers[IDS : IDS + len(ids)] = memoryview(ids)
            numbers[IN_FLIGHT] = len(ids)
        numbers[STEP] = step

    def step_done(self, tokens: int) -> None:
        self._numbers[STEPS_DONE] += 1
        self._numbers[TOKENS] += tokens

    def read(self) -> Reading:
        ticks, phase, step, steps_done, tokens, part, *load = self._numbers[:IN_FLIGHT]
        return Reading(ticks, Phase(phase), step, steps_done, tokens, LoadingPart(part), *load)

    def in_flight(self) -> frozenset[int]:
        """Return the requests in flight, to be read after the writer's death; empty if they are unknown."""
        return frozenset(self._numbers[IDS : IDS + self._numbers[IN_FLIGHT]])

    def close(self) -> None:
        """Unmap the file, which stays. No other call may follow."""
        self._numbers.release()
        self._bytes.release()
        self._memory.close()
