"""Each slot's sampling parameters, kept on the host: a step's rows travel with its other inputs in the same copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sluice.runner.inputs import Ints
from sluice.runner.noise import noise_key
from sluice.runner.sampler import RowGroup, RowKind, SamplingRows, row_kind
from sluice.types import NewSlot


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """What sampling after one step takes, on the device."""

    slots: torch.Tensor
    """[S] int64"""
    rows: SamplingRows
    groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class HostSampling:
    """The same before the copy to the device."""

    kinds: tuple[RowKind, ...]
    """Of the groups."""
    arrays: tuple[npt.NDArray[Any], ...]
    """Slots, the fields of `SamplingRows`, and the rows of each group."""

    def arrived(self, tensors: Sequence[torch.Tensor]) -> SamplingStep:
        """With `arrays` on the device."""
        slots, *rest = tensors
        groups = tuple(RowGroup(kind, rows) for kind, rows in zip(self.kinds, rest[6:], strict=True))
        return SamplingStep(slots, SamplingRows(*rest[:6]), groups)


class SamplingTable:
    """Sampling parameters by slot, in the form that `sampler.sample` takes.

    Args:
        num_slots: rows.
        vocab_size: what an absent top-k stands for.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._kinds = [RowKind.GREEDY] * num_slots
        self._temperature: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._min_p: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._top_p: npt.NDArray[np.float64] = np.ones(num_slots)
        self._top_k: Ints = np.full(num_slots, vocab_size, dtype=np.int64)
        self._streams: Ints = np.zeros(num_slots, dtype=np.int64)

    def fill(self, new: NewSlot) -> None:
        """Take over a new request's parameters, which are resolved: the seed is set."""
        slot, params = new.slot, new.sampling
        assert params.seed is not None, f"{new} has no seed"
        self._kinds[slot] = row_kind(params, self._vocab_size)
        self._temperature[slot] = params.temperature
        self._min_p[slot] = params.min_p
        self._top_p[slot] = params.top_p
        self._top_k[slot] = params.top_k if params.top_k > 0 else self._vocab_size
        self._streams[slot] = noise_key(params.seed, new.sample_index)

    def step(self, slots: Ints, positions: Ints) -> HostSampling:
        """The parameters of a step's S sampling rows, and the rows of each kind.

        Args:
            slots: [S] slot of each row.
            positions: [S] position of the token each row samples.
        """
        members = _by_kind([self._kinds[slot] for slot in slots.tolist()])
        arrays = (
            slots,
            self._temperature[slots],
            self._min_p[slots],
            self._top_k[slots],
            self._top_p[slots],
            self._streams[slots],
            positions,
            *members.values(),
        )
        return HostSampling(tuple(members), arrays)


def _by_kind(kinds: Sequence[RowKind]) -> dict[RowKind, Ints]:
    rows: dict[RowKind, list[int]] = {}
    for row, kind in enumerate(kinds):
        rows.setdefault(kind, []).append(row)
    return {kind: np.array(members, dtype=np.int64) for kind, members in rows.items()}
