"""The engine's heartbeat in shared memory, and the decision whether an engine is alive.

The heartbeat is a file of 64-bit integers that both processes map. The engine writes and the server reads at any time,
so an engine that hangs can still be looked at. Each number is written in one piece, and stays readable after the
writer's death.

`LivenessWatch` decides from readings of it alone, by a clock that is handed in, that an engine is dead:

    no tick for `heartbeat_timeout`                            the thread hangs or was stopped
    one wait for the device for `step_timeout`                 the device hangs
    idle, and message counts differ for `heartbeat_timeout`    a message was lost

A step may take any time while it ticks. Loading a model is not watched here: it has a timeout of its own.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from sluice.engine.heartbeat import Heartbeat, Phase

MAX_IN_FLIGHT = 1 << 16
"""Ids that fit. If more requests are in flight, none is recorded."""
TICKS, PHASE, STEP, STEPS_DONE, TOKENS, RECEIVED, SENT, IN_FLIGHT = range(8)
IDS = IN_FLIGHT + 1
SIZE = 8 * (IDS + MAX_IN_FLIGHT)
MAX_LOOK_SECONDS = 1.0
"""Time between two looks that counts. If more passed, the server itself was not running."""


class Reading(NamedTuple):
    """The numbers of a heartbeat, counted from the start of the process."""

    ticks: int
    phase: Phase
    step: int
    """Number of the step launched last, -1 before the first."""
    steps_done: int
    tokens: int
    """Tokens computed in the steps done, prompts included."""
    received: int
    """Messages from the server."""
    sent: int
    """Messages to the server."""


class SharedHeartbeat(Heartbeat):
    """A heartbeat in a mapped file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        self._numbers = self._bytes.cast("q")

    @classmethod
    def create(cls, path: Path) -> None:
        """Create the file. Its pages take no memory until they are written."""
        with path.open("xb") as file:
            file.truncate(SIZE)
            file.seek(8 * STEP)
            file.write((-1).to_bytes(8, sys.byteorder, signed=True))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file.

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
        numbers[IN_FLIGHT] = 0  # if the process dies here, no request is recorded
        if len(ids) <= MAX_IN_FLIGHT:
            numbers[IDS : IDS + len(ids)] = memoryview(ids)
            numbers[IN_FLIGHT] = len(ids)
        numbers[STEP] = step

    def step_done(self, tokens: int) -> None:
        self._numbers[STEPS_DONE] += 1
        self._numbers[TOKENS] += tokens

    def messages(self, *, received: int, sent: int) -> None:
        """Record how many messages were received and sent so far."""
        self._numbers[RECEIVED] = received
        self._numbers[SENT] = sent

    def read(self) -> Reading:
        ticks, phase, *counts = self._numbers[:IN_FLIGHT]
        return Reading(ticks, Phase(phase), *counts)

    def in_flight(self) -> frozenset[int]:
        """Return the requests in flight, to be read after the writer's death; empty if they are unknown."""
        return frozenset(self._numbers[IDS : IDS + self._numbers[IN_FLIGHT]])

    def close(self) -> None:
        """Unmap the file, which stays. No other call may follow."""
        self._numbers.release()
        self._bytes.release()
        self._memory.close()


class Counts(NamedTuple):
    """Messages as the server counts them."""

    sent: int
    received: int


class LivenessWatch:
    """Decides whether one engine is alive.

    Args:
        heartbeat_timeout: seconds without a tick, or idle with a message missing, after which the engine is dead.
        step_timeout: the longest wait for the device, in seconds.
        now: the present time, in seconds of any clock.
    """

    def __init__(self, heartbeat_timeout: float, step_timeout: float, now: float) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        self._step_timeout = step_timeout
        self._looked_at = now
        self._ticks = -1
        self._waits_after: int | None = None
        """While the engine waits for the device: the steps done when the wait began."""
        self.silent = 0.0
        """Seconds since a tick was seen."""
        self._waited = 0.0
        """Seconds of the present wait for the device."""
        self._missing = 0.0
        """Seconds since the counts of messages differ while the engine is idle."""

    def look(self, reading: Reading, counts: Counts, now: float) -> str | None:
        """Return why the engine counts as dead, in words that follow "the engine", or None if it is alive."""
        passed = min(now - self._looked_at, MAX_LOOK_SECONDS)
        self._looked_at = now
        if reading.phase is Phase.LOADING:
            return None
        waits_after = reading.steps_done if reading.phase is Phase.DEVICE else None
        is_same_wait = waits_after is not None and waits_after == self._waits_after
        is_missing = reading.phase is Phase.IDLE and counts != (reading.received, reading.sent)
        self.silent = self.silent + passed if reading.ticks == self._ticks else 0.0
        self._waited = self._waited + passed if is_same_wait else 0.0
        self._missing = self._missing + passed if is_missing else 0.0
        self._ticks, self._waits_after = reading.ticks, waits_after
        return self._verdict(reading, counts)

    def _verdict(self, reading: Reading, counts: Counts) -> str | None:
        if self.silent >= self._heartbeat_timeout:
            phase = reading.phase.name.lower()
            return f"sent no heartbeat for {self.silent:.1f} s in step {reading.step} ({phase}) and was killed"
        if self._waited >= self._step_timeout:
            return f"waited {self._waited:.1f} s for step {reading.step} (--step-timeout) and was killed"
        if self._missing >= self._heartbeat_timeout:
            return (
                f"lost a message and was killed: it received {reading.received} of {counts.sent} messages and sent"
                f" {reading.sent}, of which {counts.received} arrived"
            )
        return None
