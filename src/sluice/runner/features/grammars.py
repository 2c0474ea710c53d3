"""Grammars: what a row may sample next, as a mask over the vocabulary.

The mask of a row depends on all tokens before the one that is sampled, so it is computed as soon as the last of them is
known: when a step's result is read, on a thread of its own, while the next step is planned, launched and run. Just
before that step samples, the masks of its rows are applied together. A row whose mask is not there by then is given no
token in this step and tries again in the next, when it no longer waits at all; so a slow grammar delays a step by
`PATIENCE` once.

A row with drafts has a mask for each of its samples (`runner/draft_masks.py`). Those behind drafts are computed while
its step is, and one that is not there in time ends what the row brings.

The matcher of a request lives until the request ends, or its slot is another's. It is made again from the request's
outputs whenever it gets a slot: after a preemption, and in an engine that continues the requests of one that died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sluice.device.queues import HostBuffers, pinned_host_buffer, plain_host_buffer
from sluice.runner.constrained_row import ConstrainedRow
from sluice.runner.draft_masks import DraftMasks
from sluice.runner.drafts import StagedDrafts, reached
from sluice.runner.features.base import Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.grammar.base import CompiledGrammar, CompiledGrammars
from sluice.runner.grammar.guidance import Bits, GrammarError, GuidanceMatcher
from sluice.runner.inputs import HostBatch
from sluice.runner.mask_workers import MaskWorkers
from sluice.types import NewSlot

PATIENCE = 0.01
"""Seconds that a step waits for masks, all of them together, once everything before its sampling is queued."""


Publish = Callable[[torch.Tensor], None]
"""Takes the masks of a step, [C, words] int32 on the host, before they are applied."""


def keep(masks: torch.Tensor) -> None:
    """Return: no other rank needs them."""


class NoCompiledGrammars:
    """For a runner whose requests have no grammar."""

    def find(self, request_id: int) -> CompiledGrammar:
        raise GrammarError("this engine takes no grammars")

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Return: nothing ends."""


NO_GRAMMARS = NoCompiledGrammars()


class LostGrammar:
    """Stands for a grammar that is not there."""

    def __init__(self, error: GrammarError) -> None:
        self._error = error

    def matcher(self, *, may_force: bool = True) -> GuidanceMatcher:
        raise self._error


@dataclass(slots=True)
class MaskedRow:
    """A row with a grammar in one step."""

    row: ConstrainedRow
    first: int
    """Index of its first sample, of S."""
    end: int
    """Index of the sample behind its last one."""
    drafts: DraftMasks | None = None
    """Masks of its drafts; None if it has none, or does not follow them."""
    is_ready: bool = False
    """Whether its own mask was there in time."""

    def follow(self, drafts: Sequence[int], workers: MaskWorkers) -> None:
        """Let a thread compute the masks behind drafts, unless the row's own masks take long."""
        if drafts and self.row.follows_drafts:
            self.drafts = DraftMasks(self.row, drafts, PATIENCE)
            workers.run(self.drafts.compute)

    def wait(self, until: float) -> None:
        """Wait for its masks until a time, if they are not known to be slow."""
        row, drafts = self.row, self.drafts
        self.is_ready = row.is_ready(0.0 if row.is_slow or row.is_late else until - time.monotonic())
        if self.is_ready and drafts is not None and not drafts.is_done(until - time.monotonic()):
            row.leave_drafts()

    def masks(self) -> Sequence[Bits]:
        """Return the masks of its first samples; the others can be no token."""
        if not self.is_ready or self.row.problem is not None:
            return ()
        return (self.row.bits,) if self.drafts is None else (self.row.bits, *self.drafts.found)


class StagedGrammars(StagedFeature):
    """The masks of one step.

    Args:
        masked: the rows with a grammar, in their order.
        new_buffer: makes the tensor in which masks travel to the device.
        publish: takes the masks for other ranks.
    """

    def __init__(
        self, masked: Sequence[MaskedRow], workers: MaskWorkers, new_buffer: HostBuffers, publish: Publish
    ) -> None:
        self._masked = masked
        self._samples = [sample for each in masked for sample in range(each.first, each.end)]
        self.arrays = (np.array(self._samples, dtype=np.int64),)
        self._workers = workers
        self._new_buffer = new_buffer
        self._publish = publish

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        (self._rows,) = tensors

    def apply(self, logits: StepLogits) -> None:
        """Wait for the masks and apply them."""
        bits = self._masks()
        masked = logits.maskable()
        logits.ops.mask(masked, self._rows, bits.to(masked.device, non_blocking=True))

    def guessed(self, drafts: StagedDrafts) -> None:
        """Follow what the runner has guessed. On a separate device the host waits for it."""
        ids = drafts.ids.tolist()
        for each in self._masked:
            each.follow(drafts.host.of_row(ids, each.first, each.end), self._workers)

    def hand_on(self) -> None:
        self._masks()

    def complete(self, outcome: Outcome) -> None:
        failed = dict(outcome.failed)
        self.report((), outcome)
        outcome.failed.update(failed)

    def _masks(self) -> torch.Tensor:
        """Wait for the masks, publish and return them, [C, words] int32. A sample without one can be no token."""
        until = time.monotonic() + PATIENCE
        for each in self._masked:
            each.wait(until)
        words = len(self._masked[0].row.bits)
        bits = self._new_buffer((len(self._samples), words), torch.int32)
        on_host, at = bits.numpy(), 0
        for each in self._masked:
            begin = at
            for mask in each.masks():
                on_host[at] = mask
                at += 1
            if at < (end := begin + each.end - each.first):
                on_host[at:end] = 0
                at = end
        self._publish(bits)
        return bits

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        for each in self._masked:
            self._report_row(each, outcome)
        if not all(each.is_ready for each in self._masked):
            self._workers.relieve(PATIENCE)

    def _report_row(self, masked: MaskedRow, outcome: Outcome) -> None:
        row, first = masked.row, masked.first
        in_plan = int(outcome.host.sample_rows[first])
        if not masked.is_ready:
            row.is_late = True
            outcome.failed.pop(in_plan, None)
            outcome.others[first] = ()
        elif row.problem is not None:
            outcome.failed[in_plan] = row.problem
        elif row.is_complete:
            outcome.failed.pop(in_plan, None)
            outcome.others[first] = ()
            outcome.complete.append(in_plan)
        elif in_plan not in outcome.failed:
            sampled = reached(outcome.tokens[first : masked.end])
            outcome.others[first] = row.advance(sampled)
            if row.problem is not None:
                if not outcome.others[first]:
                    outcome.failed[in_plan] = row.problem
            elif row.is_complete:
                outcome.complete.append(in_plan)
            elif sampled[-1] not in row.stop_ids:
                self._workers.run(row.compute, is_slow=row.is_slow)


class GrammarMasks(Feature):
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
        slots, drafts = host.sample_slots.tolist(), host.drafts
        spans = zip(range(len(slots)), range(1, len(slots) + 1), strict=True) if drafts is None else drafts.spans()
        masked = [MaskedRow(row, *span) for span in spans if (row := self._rows.get(slots[span[0]])) is not None]
        if not masked:
            return None
        for each in masked:
            at, slot = int(host.sample_positions[each.first]), slots[each.first]
            assert each.row.position == at, f"slot {slot} samples at {at}, its grammar is at {each.row.position}"
            if drafts is not None and drafts.are_known:
                each.follow(drafts.of_row(drafts.ids.tolist(), each.first, each.end), self._workers)
        return StagedGrammars(masked, self._workers, self._new_buffer, self._publish)

    def close(self) -> None:
        """End the threads. No step may follow; may be called again."""
        self._workers.close()
