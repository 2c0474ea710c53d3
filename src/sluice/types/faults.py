"""Injected faults, with which tests and operators see how a server handles them.

    crash@20          the engine's process is killed before its step 20 (steps count from 0)
    hang@20           its thread stops there
    slow@20=60        that step waits 60 s longer for the device
    alloc@20          memory for that step is refused
    nan@20            the logits of its first row are NaN
    crash@token:7     before any step that computes token 7, in a prompt for example; also hang, slow, alloc, nan

Commas separate several. A fault by number strikes in the first engine of a server only, a fault by token in every one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.types import BatchPlan

TOKEN = "token:"


class FaultError(ValueError):
    """A text that is no fault. The message is one line for the user."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"
    ALLOC = "alloc"
    NAN = "nan"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a step by number, or at every step that computes a token."""

    kind: FaultKind
    number: int | None = None
    token: int | None = None
    seconds: float = 0.0

    def rows(self, step: int, plan: BatchPlan) -> list[int]:
        """Return the rows of the engine's step number `step` that it strikes."""
        if self.token is not None:
            return [row for row, chunk in enumerate(plan.chunks) if self.token in chunk.token_ids]
        return [0] if step == self.number else []


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parse a text of the form above.

    Raises:
        FaultError: naming the part that is no fault, and what would be one.
    """
    return tuple(_fault(part.strip()) for part in text.split(",") if part.strip())


def of_engine(faults: Sequence[Fault], epoch: int) -> tuple[Fault, ...]:
    """Return the faults that strike in a server's engine number `epoch`."""
    return tuple(fault for fault in faults if epoch == 0 or fault.token is not None)


def _fault(part: str) -> Fault:
    name, _, where = part.partition("@")
    where, equals, seconds = where.partition("=")
    try:
        kind = FaultKind(name)
        if bool(equals) != (kind is FaultKind.SLOW):
            raise ValueError
        token = _count(where.removeprefix(TOKEN)) if where.startswith(TOKEN) else None
        return Fault(kind, _count(where) if token is None else None, token, _seconds(seconds) if equals else 0.0)
    except ValueError:
        raise FaultError(
            f"{part!r} is not a fault; accepted are crash, hang, alloc or nan with @STEP, and slow@STEP=SECONDS;"
            " all take @token:ID instead of @STEP"
        ) from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError
    return seconds
