"""Splits the time of steps by the operations of the compiled kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.kernels.cpu.abi import Operation, PackedLinearCall
from sluice.kernels.cpu.library import Call, Kernels

NAMES = {Operation.PACKED_LINEAR: "linear", Operation.ATTENTION: "attention"}
HEAD, SMALL, REST = "head", "small", "rest"


class StepProfile:
    """Times the calls of kernels. A part's time includes Python's between the call before it and its own, some 20 us.

    Captured steps call no kernels from Python: all their time is the rest.

    Args:
        vocab_size: outputs of the head.
    """

    def __init__(self, kernels: Kernels, vocab_size: int) -> None:
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._last = 0.0
        self._seconds: dict[str, float] = {}
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step."""
        self._last = time.perf_counter()
        with self._kernels.reporting_to(self._record):
            yield
        self._add(REST)
        self._steps += 1

    def take(self) -> dict[str, float]:
        """Return the mean seconds of a step by part, and begin anew."""
        found = {name: seconds / self._steps for name, seconds in self._seconds.items()}
        self._seconds, self._steps = {}, 0
        return found

    def _record(self, operation: Operation, call: Call) -> None:
        is_head = isinstance(call, PackedLinearCall) and call.out_features == self._vocab_size
        self._add(HEAD if is_head else NAMES.get(operation, SMALL))

    def _add(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now
