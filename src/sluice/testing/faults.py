"""A runner that fails where a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult, RowError


@dataclass(frozen=True)
class Faults:
    """What goes wrong, by number of the launch (from 0)."""

    launch_raises: frozenset[int] = frozenset()
    wait_raises: frozenset[int] = frozenset()
    row_fails: Mapping[int, int] = field(default_factory=dict)
    """Launch -> row of the plan that fails (counted modulo the number of rows)."""


class InjectedFault(RuntimeError):
    """A fault that a test asked for."""


@dataclass
class FaultyStep:
    inner: Pending
    spoil: Callable[[BatchResult], BatchResult]

    def wait(self) -> BatchResult:
        return self.spoil(self.inner.wait())


class FaultyRunner:
    """A runner that fails on request."""

    def __init__(self, inner: Runner, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._launches = 0

    def launch(self, plan: BatchPlan) -> Pending:
        number = self._launches
        self._launches += 1
        if number in self._faults.launch_raises:
            raise InjectedFault(f"launch {number}")

        def spoil(result: BatchResult) -> BatchResult:
            if number in self._faults.wait_raises:
                raise InjectedFault(f"wait {number}")
            if number in self._faults.row_fails and plan.chunks:
                row = self._faults.row_fails[number] % len(plan.chunks)
                return without_row(plan, result, row)
            return result

        return FaultyStep(self._inner.launch(plan), spoil)


def without_row(plan: BatchPlan, result: BatchResult, row: int) -> BatchResult:
    """The result with one row failed."""
    sampling_rows = [index for index, chunk in enumerate(plan.chunks) if chunk.samples]
    target_rows = [index for index, chunk in enumerate(plan.chunks) if chunk.targets]
    return replace(
        result,
        token_ids=_emptied(sampling_rows, result.token_ids, row),
        logprobs=_emptied(sampling_rows, result.logprobs, row) if result.logprobs else (),
        prompt_logprobs=_emptied(target_rows, result.prompt_logprobs, row),
        errors=(RowError(row, f"row {row} failed"),),
    )


T = TypeVar("T")


def _emptied(rows: Sequence[int], entries: Sequence[tuple[T, ...]], failed: int) -> tuple[tuple[T, ...], ...]:
    return tuple(() if row == failed else entry for row, entry in zip(rows, entries, strict=True))
