"""Logits as a request wants them before it samples: a bias, penalties, and no end before `min_tokens`.

Each row by itself and in this order: the bias is added; penalties go by the tokens so far (`token_counts`); stop
tokens become -inf while there are too few outputs. A row that asks for none of it keeps its logits bit by bit, whatever
its neighbours ask for. Log-probabilities are told of the model's own logits, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sluice.device.upload import upload
from sluice.runner.inputs import Ints
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.runner.penalties import Penalties
from sluice.runner.token_counts import Opening, TokenCounts
from sluice.types import NewSlot


@dataclass(frozen=True, slots=True)
class Entries:
    """Single logits: (row, token id) and a value for each, all [E]."""

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepAdjustments:
    """What a step's logits are changed by, on the device."""

    counts: TokenCounts
    bias: Entries | None
    stops: Entries | None
    penalties: Penalties | None
    penalized_rows: torch.Tensor
    """[P] of the step's rows"""
    count_rows: torch.Tensor
    """[P] of `counts`"""

    def apply(self, logits: torch.Tensor, ops: LogitOps = TORCH_LOGIT_OPS) -> torch.Tensor:
        """The logits [S, vocab] to sample from: a contiguous copy, float64 for float64, else float32."""
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logits = logits.to(dtype, copy=True, memory_format=torch.contiguous_format)
        if self.bias is not None:
            values = self.bias.values.to(logits.dtype)
            logits.index_put_((self.bias.rows, self.bias.ids), values, accumulate=True)
        if self.penalties is not None:
            ops.penalize(logits, self.penalized_rows, self.counts, self.count_rows, self.penalties)
        if self.stops is not None:
            logits.index_put_((self.stops.rows, self.stops.ids), self.stops.values.to(logits.dtype))
        return logits

    def sampled(self, tokens: torch.Tensor) -> None:
        """Count what the step's rows [S] sampled."""
        if self.penalties is not None:
            self.counts.count(self.count_rows, tokens.index_select(0, self.penalized_rows))


HostEntries = tuple[Ints, Ints, npt.NDArray[np.float64]]
"""`Entries` before the copy to the device."""


@dataclass(frozen=True, slots=True)
class HostAdjustments:
    """What a step's logits are changed by, before the copy to the device."""

    counts: TokenCounts
    device: torch.device
    bias: HostEntries | None
    stops: HostEntries | None
    penalized_rows: Ints
    count_rows: Ints
    penalties: npt.NDArray[np.float64]
    """[3, P]: repetition, frequency, presence"""

    def on_device(self) -> StepAdjustments:
        """Bring them there. Few requests have any, so they have a copy of their own."""
        penalized_rows, count_rows, *numbers = upload(
            self.device, self.penalized_rows, self.count_rows, *self.penalties
        )
        return StepAdjustments(
            self.counts,
            None if self.bias is None else Entries(*upload(self.device, *self.bias)),
            None if self.stops is None else Entries(*upload(self.device, *self.stops)),
            Penalties(*numbers) if len(self.penalized_rows) else None,
            penalized_rows,
            count_rows,
        )


class Adjustments:
    """What each slot's request wants, kept on the host; the counts are on the device.

    Args:
        num_slots: rows.
        vocab_size: stop ids beyond it cannot be sampled anyway.
        device: where the logits will be.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._counts = TokenCounts(vocab_size, device)
        self._is_penalized: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=bool)
        self._penalties: npt.NDArray[np.float64] = np.zeros((3, num_slots))
        self._bias: dict[int, tuple[Ints, npt.NDArray[np.float64]]] = {}
        self._stops: dict[int, tuple[Ints, npt.NDArray[np.float64]]] = {}
        self._no_stop_before: Ints = np.zeros(num_slots, dtype=np.int64)
        """Position from which a stop token may be sampled."""

    def fill(self, new: NewSlot) -> Opening | None:
        """Take over a new request's wishes; what it has generated so far is to be opened on the device."""
        slot, params = new.slot, new.sampling
        opening = None
        self._is_penalized[slot] = params.has_penalties
        if params.has_penalties:
            self._penalties[:, slot] = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
            row = self._counts.row_for(slot)
            opening = Opening(row, new.history[: new.prompt_len], new.history[new.prompt_len :])
        else:
            self._counts.close(slot)
        self._bias.pop(slot, None)
        self._stops.pop(slot, None)
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            self._bias[slot] = np.array(ids, dtype=np.int64), np.array(values, dtype=np.float64)
        stops = [token for token in params.stop_token_ids if token < self._vocab_size]
        if params.min_tokens and stops:
            self._stops[slot] = np.array(stops, dtype=np.int64), np.full(len(stops), -np.inf)
            self._no_stop_before[slot] = new.prompt_len + params.min_tokens
        return opening

    def open(self, opening: Opening) -> None:
        """The device's part of `fill`."""
        self._counts.open(opening)

    def step(self, slots: Ints, positions: Ints) -> HostAdjustments | None:
        """What the logits of a step's S sampling rows are changed by; None if nobody wants anything.

        Args:
            slots: [S] slot of each row.
            positions: [S] position of the token each row samples.
        """
        numbered = list(enumerate(slots.tolist()))
        biased = [(row, self._bias[slot]) for row, slot in numbered if slot in self._bias] if self._bias else []
        stopped = (
            [
                (row, self._stops[slot])
                for row, slot in numbered
                if slot in self._stops and positions[row] < self._no_stop_before[slot]
            ]
            if self._stops
            else []
        )
        rows = np.flatnonzero(self._is_penalized[slots])
        if not biased and not stopped and len(rows) == 0:
            return None
        theirs = slots[rows]
        return HostAdjustments(
            self._counts,
            self._device,
            _entries(biased),
            _entries(stopped),
            rows,
            self._counts.rows(theirs),
            self._penalties[:, theirs],
        )


def _entries(wanted: Sequence[tuple[int, tuple[Ints, npt.NDArray[np.float64]]]]) -> HostEntries | None:
    if not wanted:
        return None
    rows = np.concatenate([np.full(len(ids), row, dtype=np.int64) for row, (ids, _) in wanted])
    ids = np.concatenate([ids for _, (ids, _) in wanted])
    values = np.concatenate([values for _, (_, values) in wanted])
    return rows, ids, values
