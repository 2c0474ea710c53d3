"""Sampling parameters by slot, in the form that `sampler.sample` takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sluice.runner.features.base import Feature, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch, Ints
from sluice.runner.noise import noise_key
from sluice.runner.sampler import RowGroup, RowKind, SamplingRows, row_kind
from sluice.types import NewSlot


class StagedSampling(StagedFeature):
    """Samples one token for each row of a step.

    Args:
        columns: the fields of `SamplingRows`, [S] each.
        members: the rows of each kind.
    """

    rows: SamplingRows
    groups: Sequence[RowGroup]

    def __init__(self, columns: Sequence[npt.NDArray[np.float64] | Ints], members: dict[RowKind, Ints]) -> None:
        self._members = members
        self._num_columns = len(columns)
        self.arrays = (*columns, *members.values())

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self.rows = SamplingRows(*tensors[: self._num_columns])
        self.groups = tuple(map(RowGroup, self._members, tensors[self._num_columns :]))

    def first(self, count: int, later: int) -> tuple[SamplingRows, Sequence[RowGroup]]:
        """Return the parameters of the first rows, each for the token that follows `later` tokens behind its own."""
        rows = SamplingRows(*(column[:count] for column in self.rows))
        sizes = [int(np.searchsorted(members, count)) for members in self._members.values()]
        groups = [
            RowGroup(group.kind, group.rows[:size]) for group, size in zip(self.groups, sizes, strict=True) if size
        ]
        return rows._replace(positions=rows.positions + later), groups

    def apply(self, logits: StepLogits) -> None:
        logits.tokens = logits.ops.sample(logits.to_sample, self.rows, self.groups)


class Sampling(Feature):
    """Sampling parameters of every slot, on the host."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._kinds = [RowKind.GREEDY] * num_slots
        self._temperature: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._min_p: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._top_p: npt.NDArray[np.float64] = np.ones(num_slots)
        self._top_k: Ints = np.full(num_slots, vocab_size, dtype=np.int64)
        self._noise_keys: Ints = np.zeros(num_slots, dtype=np.int64)

    def fill(self, new: NewSlot) -> None:
        """Take over a request's parameters, whose seed is set."""
        slot, params = new.slot, new.sampling
        assert params.seed is not None, f"{new} has no seed"
        self._kinds[slot] = row_kind(params, self._vocab_size)
        self._temperature[slot] = params.temperature
        self._min_p[slot] = params.min_p
        self._top_p[slot] = params.top_p
        self._top_k[slot] = params.top_k if params.top_k > 0 else self._vocab_size
        self._noise_keys[slot] = noise_key(params.seed, new.sample_index)

    def stage(self, host: HostBatch) -> StagedSampling:
        return self.staged(host.sample_slots, host.sample_positions)

    def staged(self, slots: Ints, positions: Ints) -> StagedSampling:
        """Lay out rows [S] of the requests in `slots`, whose tokens at `positions` are sampled."""
        columns = (
            self._temperature[slots],
            self._min_p[slots],
            self._top_k[slots],
            self._top_p[slots],
            self._noise_keys[slots],
            positions,
        )
        return StagedSampling(columns, _by_kind([self._kinds[slot] for slot in slots.tolist()]))


def _by_kind(kinds: Sequence[RowKind]) -> dict[RowKind, Ints]:
    """Return the rows of each kind that occurs."""
    rows: dict[RowKind, list[int]] = {}
    for row, kind in enumerate(kinds):
        rows.setdefault(kind, []).append(row)
    return {kind: np.array(members, dtype=np.int64) for kind, members in rows.items()}
