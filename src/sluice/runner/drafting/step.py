"""DraftStep: the drafter's part of one step, laid out on the host and then done on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.device.transport import Array
from sluice.runner.drafting.layout import DraftLayout, DraftRows, kv_slots
from sluice.runner.features.sampling import StagedSampling
from sluice.runner.inputs import Ints, Ints32


class DraftStep:
    """What the drafter does in a step, and its arrays.

    Args:
        layout: which rows.
        sampling: draws for the rows that guess, in their order; None if none do.
        page_table: [slots, max_pages] int32, the host's copy, with this step's pages.
    """

    guess_arrays: Sequence[torch.Tensor]
    """`DraftRows` of the rows that guess."""
    follow_arrays: Sequence[torch.Tensor]
    """`DraftRows` of the others."""

    def __init__(
        self, layout: DraftLayout, sampling: StagedSampling | None, page_table: Ints32, page_size: int
    ) -> None:
        self.layout = layout
        self.counts = layout.counts
        """Rows that guess a first, a second, ... draft; the first of `layout.guesses` each."""
        self.sampling = sampling
        rows = [DraftRows.of(pieces, page_table, page_size) for pieces in (layout.guesses, layout.follows) if pieces]
        of_guesses: tuple[Array, ...] = ()
        if sampling is not None:
            of_guesses = (self._draft_slots(page_table, page_size), *sampling.arrays)
        self.arrays: tuple[Array, ...] = (*(array for each in rows for array in each), *of_guesses)

    def _draft_slots(self, page_table: Ints32, page_size: int) -> Ints:
        """Return the KV slots of all first drafts, of all second ones, ..., [D]."""
        slots, ends = self.layout.guessed
        owners = np.concatenate([slots[:count] for count in self.counts])
        positions = np.concatenate([ends[:count] + number for number, count in enumerate(self.counts)])
        return kv_slots(page_table, owners, positions, page_size)

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Receive `arrays` on the device, before the forward."""
        width = len(DraftRows._fields)
        taken = width if self.layout.guesses else 0
        self.guess_arrays = tensors[:taken]
        more = taken + (width if self.layout.follows else 0)
        self.follow_arrays = tensors[taken:more]
        if self.sampling is not None:
            self._slots_of_drafts = tensors[more].split(self.counts)
            self.sampling.arrive(tensors[more + 1 :])

    def draft_slots(self, number: int) -> torch.Tensor:
        """Return the KV slots [count] of the drafts of a number, from 0."""
        slots: torch.Tensor = self._slots_of_drafts[number]
        return slots
