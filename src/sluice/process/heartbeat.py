"""The heartbeat in memory that the server and the engine share: a file of 64-bit integers, mapped by both.

The engine writes, the server reads whenever it likes: nobody is asked, so nobody has to be able to answer. Each number
is written in one piece. What was written stays readable after the writer's death, however it died.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from sluice.engine.heartbeat import Phase

MAX_IN_FLIGHT = 1 << 16
"""Ids that fit. If there are more, nobody is known to be in flight."""
TICKS, PHASE, STEP, LANDED, TOKENS, RECEIVED, SENT, IN_FLIGHT = range(8)
IDS = IN_FLIGHT + 1
SIZE = 8 * (IDS + MAX_IN_FLIGHT)


class Reading(NamedTuple):
    """A look at a heartbeat. All but the phase count from the start of the process."""

    ticks: int
    phase: Phase
    step: int
    """Number of the step launched last, -1 before the first."""
    landed: int
    """Steps done."""
    tokens: int
    """Tokens by which requests have come further, prompts included."""
    received: int
    """Messages that came from the server."""
    sent: int
    """Messages to it."""


class SharedHeartbeat:
    """One heartbeat; see `engine.heartbeat.Heartbeat` for the writer's part."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        self._numbers = self._bytes.cast("q")

    @classmethod
    def create(cls, path: Path) -> None:
        """Make the file of a fresh one; its pages take no memory until they are written."""
        with path.open("xb") as file:
            file.truncate(SIZE)
            file.seek(8 * STEP)
            file.write((-1).to_bytes(8, sys.byteorder, signed=True))

    @classmethod
    def open(cls, path: Path) -> Self:
        """
        Raises:
            OSError: there is no such file.
        """
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), SIZE))

    def tick(self, phase: Phase) -> None:
        self._numbers[PHASE] = phase
        self._numbers[TICKS] += 1

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        ids = array("q", request_ids)
        numbers = self._numbers
        numbers[IN_FLIGHT] = 0  # a writer that dies here leaves nobody accused
        if len(ids) <= MAX_IN_FLIGHT:
            numbers[IDS : IDS + len(ids)] = memoryview(ids)
            numbers[IN_FLIGHT] = len(ids)
        numbers[STEP] = step

    def landed(self, tokens: int) -> None:
        self._numbers[LANDED] += 1
        self._numbers[TOKENS] += tokens

    def messages(self, *, received: int, sent: int) -> None:
        """How many messages came and went so far."""
        self._numbers[RECEIVED] = received
        self._numbers[SENT] = sent

    def read(self) -> Reading:
        """How it stands."""
        numbers = self._numbers
        return Reading(
            numbers[TICKS],
            Phase(numbers[PHASE]),
            numbers[STEP],
            numbers[LANDED],
            numbers[TOKENS],
            numbers[RECEIVED],
            numbers[SENT],
        )

    def in_flight(self) -> frozenset[int]:
        """Requests that were in flight, to be read after the writer's death; empty if none is known."""
        return frozenset(self._numbers[IDS : IDS + self._numbers[IN_FLIGHT]])

    def close(self) -> None:
        """Give the mapping up; nothing else may follow. The file stays."""
        self._numbers.release()
        self._bytes.release()
        self._memory.close()
