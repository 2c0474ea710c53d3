"""Grammars: what a row may sample next, as a mask over the vocabulary.

The mask of a row depends on all tokens before the one that is sampled, so it is computed as soon as the last of them is
known: when a step's result is read, on a thread of its own, while the next step is planned, launched and run. Just
before that step samples, the masks of its rows are applied together. A row whose mask is not there by then is given no
token in this step and tries again in the next, when it no longer waits at all; so a slow grammar delays a step by
`PATIENCE` once.

The matcher of a request lives until the request ends, or its slot is another's. It is made again from the request's
outputs whenever it gets a slot: after a preemption, and in an engine that continues the requests of one that died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sluice.device.queues import HostBuffers, pinned_host_buffer, plain_host_buffer
from sluice.grammar.base import CompiledGrammar, CompiledGrammars, GrammarError, Matcher
from sluice.runner.constrained_row import ConstrainedRow
from sluice.runner.features.base import Feature, StagedFeature, StepLogits, StepReport
from sluice.runner.inputs import HostBatch, Ints
from sluice.runner.mask_workers import MaskWorkers
from sluice.types import NewSlot

PATIENCE = 0.01
"""Seconds that a step waits for masks, all of them together, once everything before its sampling is queued."""


Publish = Callable[[torch.Tensor], None]
"""Takes the masks of a step, [C, words] int32 on the host, before they are applied."""


def keep(masks: torch.Tensor) -> None:
    """Return: no other rank needs them."""


class NoGrammars:
    """For a runner whose requests have no grammar."""

    def find(self, request_id: int) -> CompiledGrammar:
        raise GrammarError("this engine takes no grammars")

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Return: nothing ends."""


NO_GRAMMARS = NoGrammars()


class LostGrammar:
    """Stands for a grammar that is not there."""

    def __init__(self, error: GrammarError) -> None:
        self._error = error

    def matcher(self, *, may_force: bool = True) -> Matcher:
        raise self._error


class StagedGrammars(StagedFeature):
    """The masks of one step.

    Args:
        rows: [C] of the sampling rows, those with a grammar.
        constrained: of the same rows.
        new_buffer: makes the tensor in which masks travel to the device.
        publish: takes the masks for other ranks.
    """

    def __init__(
        self,
        rows: Ints,
        constrained: Sequence[ConstrainedRow],
        workers: MaskWorkers,
        new_buffer: HostBuffers,
        publish: Publish,
    ) -> None:
        self.arrays = (rows,)
        self._host_rows = rows
        self._constrained = constrained
        self._workers = workers
        self._new_buffer = new_buffer
        self._publish = publish
        self._ready: list[bool] = []

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        (self._rows,) = tensors

    def apply(self, logits: StepLogits) -> None:
        """Wait for the masks and apply them."""
        bits = self._masks()
        masked = logits.maskable()
        logits.ops.mask(masked, self._rows, bits.to(masked.device, non_blocking=True))

    def hand_on(self) -> None:
        self._masks()

    def complete(self, report: StepReport) -> None:
        failed = dict(report.failed)
        self.report((), report)
        report.failed.update(failed)

    def _masks(self) -> torch.Tensor:
        """Wait for the masks, publish and return them, [C, words] int32. A row without one can sample nothing."""
        until = time.monotonic() + PATIENCE
        self._ready = [
            row.is_ready(0.0 if row.is_slow or row.is_late else until - time.monotonic()) for row in self._constrained
        ]
        words = len(self._constrained[0].bits)
        bits = self._new_buffer((len(self._constrained), words), torch.int32)
        on_host = bits.numpy()
        for index, (row, is_ready) in enumerate(zip(self._constrained, self._ready, strict=True)):
            on_host[index] = row.bits if is_ready and row.problem is None else 0
        self._publish(bits)
        return bits

    def report(self, tensors: Sequence[torch.Tensor], report: StepReport) -> None:
        rows = zip(self._host_rows.tolist(), self._constrained, self._ready, strict=True)
        for index, row, is_ready in rows:
            self._report_row(index, row, report, is_ready=is_ready)
        if not all(self._ready):
            self._workers.relieve(PATIENCE)

    def _report_row(self, index: int, row: ConstrainedRow, report: StepReport, *, is_ready: bool) -> None:
        in_plan = int(report.host.sample_rows[index])
        if not is_ready:
            row.is_late = True
            report.failed.pop(in_plan, None)
            report.brought[index] = ()
        elif row.problem is not None:
            report.failed[in_plan] = row.problem
        elif row.is_complete:
            report.failed.pop(in_plan, None)
            report.brought[index] = ()
            report.complete.append(in_plan)
        elif in_plan not in report.failed:
            report.brought[index] = row.advance(report.tokens[index])
            if row.problem is not None:
                report.failed[in_plan] = row.problem
            elif row.is_complete:
                report.complete.append(in_plan)
            elif report.tokens[index] not in row.stop_ids:
                self._workers.run(row.compute, is_slow=row.is_slow)


class Grammars(Feature):
    """The places of requests in their grammars, by slot, on the host.

    Args:
        grammars: finds the grammars of requests.
        publish: takes the masks of each step for other ranks.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        grammars: CompiledGrammars = NO_GRAMMARS,
        publish: Publish = keep,
    ) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._new_buffer: HostBuffers = pinned_host_buffer if device.type == "cuda" else plain_host_buffer
        self._publish = publish
        self._workers = MaskWorkers()
        self._rows: dict[int, ConstrainedRow] = {}
        grammars.watch(self._end)

    def _end(self, request_id: int) -> None:
        """Release the matcher of a request that has ended. Steps in flight keep it until they are read."""
        self._rows = {slot: row for slot, row in self._rows.items() if row.request_id != request_id}

    def forget(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def fill(self, new: NewSlot) -> None:
        if new.submit.grammar:
            row = ConstrainedRow(new, self._found(new.request_id), self._vocab_size)
            self._rows[new.slot] = row
            self._workers.run(row.compute)

    def _found(self, request_id: int) -> CompiledGrammar:
        try:
            return self._grammars.find(request_id)
        except GrammarError as error:
            return LostGrammar(error)  # the request ends, and not the step

    def stage(self, host: HostBatch) -> StagedGrammars | None:
        if not self._rows:
            return None
        slots = host.sample_slots.tolist()
        rows = [index for index, slot in enumerate(slots) if slot in self._rows]
        if not rows:
            return None
        constrained = [self._rows[slots[index]] for index in rows]
        for index, row in zip(rows, constrained, strict=True):
            at = int(host.sample_positions[index])
            assert row.position == at, f"slot {slots[index]} samples at {at}, its grammar is at {row.position}"
        numbers = np.array(rows, dtype=np.int64)
        return StagedGrammars(numbers, constrained, self._workers, self._new_buffer, self._publish)

    def close(self) -> None:
        """End the threads. No step may follow; may be called again."""
        self._workers.close()
