"""Signs of life: told by the thread that runs the steps, and by no other, so that they mean what they say.

A tick says that this thread came to a certain point, and which. It ticks once a turn of the loop, once a layer, and
every second while it waits; a thread that loops for ever in C, waits for a lock or was stopped ticks no more, however
well the rest of its process does.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """What the thread was at when it ticked."""

    LOADING = 0
    """Loads the model; nobody ticks."""
    IDLE = 1
    """Waits for messages: there is nothing to do."""
    BUSY = 2
    """Plans, or computes."""
    DEVICE = 3
    """Waits for a step that a device computes."""


class Heartbeat(Protocol):
    """Where signs of life go."""

    def tick(self, phase: Phase) -> None:
        """The thread lives, and is at this."""
        ...

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        """A step is about to be launched, and these requests are in flight then, its own included."""
        ...

    def landed(self, tokens: int) -> None:
        """The oldest step in flight is done: it took requests this many tokens further."""
        ...


class NoHeartbeat:
    """Nobody watches."""

    def tick(self, phase: Phase) -> None:
        pass

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        pass

    def landed(self, tokens: int) -> None:
        pass
