"""A runner that fails at chosen launches, to test what an engine does with errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult, RowError


@dataclass(frozen=True)
class Faults:
    """The launches that fail, by their number from 0.

    >>> Faults(wait_raises=frozenset({2}), row_fails={3: 1}).launch_raises
    frozenset()
    """

    launch_raises: frozenset[int] = frozenset()
    """Launches whose `launch` raises."""
    wait_raises: frozenset[int] = frozenset()
    """Launches whose `wait` raises."""
    row_fails: Mapping[int, int] = field(default_factory=dict)
    """Launch -> row of its plan that fails, modulo the number of rows."""


class InjectedFault(RuntimeError):
    """The error that a `FaultyRunner` raises."""


@dataclass
class FaultyStep:
    """A launched step whose result is changed before the engine sees it."""

    inner: Pending
    change: Callable[[BatchResult], BatchResult]

    def wait(self) -> BatchResult:
        return self.change(self.inner.wait())


class FaultyRunner:
    """Passes plans to another runner, and fails at the launches that `faults` names.

    Args:
        inner: the runner that computes.
        faults: launches that raise `InjectedFault`, and rows that fail alone.

    >>> from sluice.testing import ShadowRunner
    >>> from sluice.types import BatchPlan
    >>> runner = FaultyRunner(ShadowRunner(page_size=4), Faults(launch_raises=frozenset({0})))
    >>> runner.launch(BatchPlan(step=0, new_slots=(), chunks=()))
    Traceback (most recent call last):
    sluice.testing.faults.InjectedFault: launch 0
    """

    def __init__(self, inner: Runner, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._launches = 0

    def launch(self, plan: BatchPlan) -> Pending:
        number = self._launches
        self._launches += 1
        if number in self._faults.launch_raises:
            raise InjectedFault(f"launch {number}")

        def change(result: BatchResult) -> BatchResult:
            if number in self._faults.wait_raises:
                raise InjectedFault(f"wait {number}")
            if number in self._faults.row_fails and plan.chunks:
                row = self._faults.row_fails[number] % len(plan.chunks)
                return without_row(plan, result, row)
            return result

        return FaultyStep(self._inner.launch(plan), change)

    def close(self) -> None:
        self._inner.close()


def without_row(plan: BatchPlan, result: BatchResult, row: int) -> BatchResult:
    """Return the result as it is when one row of the plan has failed."""
    sampling_rows = [index for index, chunk in enumerate(plan.chunks) if chunk.samples]
    embed_rows = [index for index, chunk in enumerate(plan.chunks) if chunk.embeds]
    target_rows = [index for index, chunk in enumerate(plan.chunks) if chunk.targets]
    return replace(
        result,
        token_ids=_emptied(sampling_rows, result.token_ids, row),
        logprobs=_emptied(sampling_rows, result.logprobs, row) if result.logprobs else (),
        prompt_logprobs=_emptied(target_rows, result.prompt_logprobs, row),
        accepted=tuple(
            0 if index == row else count for index, count in zip(sampling_rows, result.accepted, strict=False)
        ),
        embeddings=tuple(
            b"" if index == row else found for index, found in zip(embed_rows, result.embeddings, strict=True)
        ),
        errors=(RowError(row, f"row {row} failed"),),
    )


T = TypeVar("T")


def _emptied(rows: Sequence[int], entries: Sequence[tuple[T, ...]], failed: int) -> tuple[tuple[T, ...], ...]:
    return tuple(() if row == failed else entry for row, entry in zip(rows, entries, strict=True))
