"""Masks on the ranks that have no grammars: they come from the leader, after the plan of their step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sluice.parallel.layout import WORD
from sluice.runner.features.base import Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch, Ints
from sluice.types import NewSlot

MaskSource = Callable[[], bytes]
"""Waits for the masks of the next step that has any (`frames.Masks`)."""


class ReceivedMasks(StagedFeature):
    """The masks of one step.

    Args:
        rows: [C] of the sampling rows, those with a grammar.
        words: of a mask.
        receive: waits for the masks.
    """

    def __init__(self, rows: Ints, words: int, receive: MaskSource) -> None:
        self.arrays = (rows,)
        self._host_rows = rows
        self._allows_none: Ints = rows[:0]
        self._shape = len(rows), words
        self._receive = receive

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        (self._rows,) = tensors

    def apply(self, logits: StepLogits) -> None:
        bits = np.frombuffer(bytearray(self._receive()), dtype=np.int32).reshape(self._shape)
        self._allows_none = self._host_rows[~bits.any(1)]
        masked = logits.maskable()
        logits.ops.mask(masked, self._rows, torch.from_numpy(bits).to(masked.device))

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        """Let no row fail that may sample nothing: only the leader knows why it may not, and what the row brings."""
        none, drafts = self._allows_none, outcome.host.drafts
        if drafts is not None:
            none = np.intersect1d(none, drafts.firsts)  # no other sample fails a row
        for index in none.tolist():
            outcome.failed.pop(int(outcome.host.sample_rows[index]), None)

    def hand_on(self) -> None:
        """Drop the masks: this rank samples nothing."""
        self._receive()


class GrammarsElsewhere(Feature):
    """Which slots have a grammar. The leader follows the grammars.

    Args:
        receive: waits for the masks of a step.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device, receive: MaskSource) -> None:
        self._words = -(-vocab_size // WORD)
        self._receive = receive
        self._slots: set[int] = set()

    def forget(self, slot: int) -> None:
        self._slots.discard(slot)

    def fill(self, new: NewSlot) -> None:
        if new.submit.grammar:
            self._slots.add(new.slot)

    def stage(self, host: HostBatch) -> ReceivedMasks | None:
        rows = [index for index, slot in enumerate(host.sample_slots.tolist()) if slot in self._slots]
        return ReceivedMasks(np.array(rows, dtype=np.int64), self._words, self._receive) if rows else None
