"""Changes to logits that a request asks for: a bias, penalties, and no end before `min_tokens`.

They apply to each row by itself and in this order: the bias is added; penalties go by the tokens so far; stop tokens
become -inf while there are too few outputs. A row that asks for none of them keeps its logits bit by bit, beside any
neighbours. Log-probabilities are those of the model's own logits.

The counts of tokens that penalties go by live on the device and grow there with every sample, because a step may be
launched before the host knows the sample of the one before. They are made again from the request's history whenever it
gets a slot, so a preemption, or a device that lost its state, changes nothing.

A draft counts for the samples behind it. So the rows are penalized in rounds, the samples behind the same number of
drafts together, and the drafts in their places are counted before the next round. After the sampling all drafts are
taken back, and the tokens that count are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sluice.device.transport import Array
from sluice.runner.features.base import Feature, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch, HostDrafts, Ints
from sluice.runner.logit_ops import PenaltyValues, TokenTables
from sluice.types import NewSlot

Floats = npt.NDArray[np.float64]


class Entries(NamedTuple):
    """Single logits, a value for each: [E]."""

    rows: Ints
    ids: Ints
    values: Floats


class Opening(NamedTuple):
    """A row of counts that begins anew."""

    row: int
    prompt: Ints
    outputs: Ints
    """What was generated so far."""


class Penalized(NamedTuple):
    """Rows of a step with penalties. If there are drafts, in rounds: behind none of them, behind one, and so on."""

    rows: Ints
    """[P] of the step's rows"""
    count_rows: Ints
    """[P] of the counts"""
    values: Floats
    """[3, P], repetition, frequency and presence"""
    drafts: Ints
    """[Q] of the step's drafts, those of such rows"""
    draft_rows: Ints
    """[Q] of the counts"""
    rounds: Sequence[slice]
    """Slices of P, one for each round; empty if no row has drafts."""
    draft_rounds: Sequence[slice]
    """Slices of Q, one for each of the first rounds, as far as there are any: the drafts in the places of a round's
    samples."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.rows, self.count_rows, *self.values, self.drafts, self.draft_rows)


class TokenCounts:
    """Rows of counts on the device for the slots that need them, made as they are needed and reused.

    Args:
        width: columns, one for each token.
        device: where the logits are.
        first: the token of the first column. Other tokens are not counted.
    """

    def __init__(self, width: int, device: torch.device, first: int = 0) -> None:
        self._first = first
        self.tables = TokenTables(
            torch.zeros((0, width), dtype=torch.bool, device=device),
            torch.zeros((0, width), dtype=torch.int32, device=device),
        )
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._promised = 0
        """Rows that exist, or will exist once the device has done what it was given."""

    def row_for(self, slot: int) -> int:
        """Return the row of a slot that needs counts. Its content is undefined until it is opened."""
        if slot not in self._rows:
            if not self._free:
                add = max(4, self._promised)
                self._free.extend(range(self._promised + add - 1, self._promised - 1, -1))
                self._promised += add
            self._rows[slot] = self._free.pop()
        return self._rows[slot]

    def close(self, slot: int) -> None:
        """Free the row of a slot, if it has one."""
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))

    def rows(self, slots: Ints) -> Ints:
        """Return the rows of slots that have one, [P]."""
        return np.array([self._rows[slot] for slot in slots.tolist()], dtype=np.int64)

    def open(self, row: int, prompt: torch.Tensor, outputs: torch.Tensor) -> None:
        """Begin a row anew on the device, with the columns int64 of a request's prompt and outputs."""
        while len(self.tables.outputs) <= row:
            self.tables = TokenTables(*map(_twice_as_long, self.tables))
        self.tables.in_prompt[row].zero_().index_fill_(0, prompt, 1)
        self.tables.outputs[row].zero_().index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.int32))

    def count(self, rows: torch.Tensor, tokens: torch.Tensor, *, is_added: bool = True) -> None:
        """Count tokens [P] in rows [P], or take them back. Below 0 there is no token: the row failed, its mask was
        late, or a draft before it was wrong."""
        last = self.tables.outputs.shape[1] - 1
        columns = tokens - self._first
        nearest = columns.clamp(0, last)
        added = ((tokens >= 0) & (columns == nearest)).to(torch.int32)
        self.tables.outputs.index_put_((rows, nearest), added if is_added else added.neg_(), accumulate=True)


def _twice_as_long(table: torch.Tensor) -> torch.Tensor:
    return torch.cat([table, table.new_zeros((max(4, len(table)), table.shape[1]))])


class StagedPenalties(StagedFeature):
    """Changes to the logits of one step.

    Args:
        counts: of all slots.
        openings: rows of counts that begin anew.
        bias: values to add.
        stops: logits that become -inf; values are not used.
        penalized: the step's rows with penalties.
    """

    def __init__(
        self, counts: TokenCounts, openings: Sequence[Opening], bias: Entries, stops: Entries, penalized: Penalized
    ) -> None:
        self._counts = counts
        self._opened = [opening.row for opening in openings]
        self._rounds, self._draft_rounds = penalized.rounds, penalized.draft_rounds
        opened = (ids for opening in openings for ids in (opening.prompt, opening.outputs))
        self.arrays = (*bias, stops.rows, stops.ids, *penalized.arrays, *opened)

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self._bias, self._stops, (self._rows, self._count_rows) = tensors[:3], tensors[3:5], tensors[5:7]
        self._values, (self._drafts, self._draft_rows) = PenaltyValues(*tensors[7:10]), tensors[10:12]
        for row, prompt, outputs in zip(self._opened, tensors[12::2], tensors[13::2], strict=True):
            self._counts.open(row, prompt, outputs)

    def apply(self, logits: StepLogits) -> None:
        if len(self._bias[0]):
            changed = logits.writable()
            bias_rows, bias_ids, values = self._bias
            changed.index_put_((bias_rows, bias_ids), values.to(changed.dtype), accumulate=True)
        if self._draft_rounds:
            self._penalize_in_rounds(logits)
        elif len(self._rows):
            logits.ops.penalize(logits.writable(), self._rows, self._counts.tables, self._count_rows, self._values)
        if len(self._stops[0]):
            changed = logits.writable()
            changed.index_put_(tuple(self._stops), changed.new_full((), -torch.inf))

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        """Count what the rows with penalties sampled, and no draft."""
        if len(self._drafts):
            self._counts.count(self._draft_rows, self._draft_ids(logits), is_added=False)
        if len(self._rows):
            self._counts.count(self._count_rows, logits.tokens.index_select(0, self._rows))
        return ()

    def _penalize_in_rounds(self, logits: StepLogits) -> None:
        for part, drafted in zip_longest(self._rounds, self._draft_rounds):
            values = PenaltyValues(*(value[part] for value in self._values))
            rows, count_rows = self._rows[part], self._count_rows[part]
            logits.ops.penalize(logits.writable(), rows, self._counts.tables, count_rows, values)
            if drafted is not None:
                self._counts.count(self._draft_rows[drafted], self._draft_ids(logits)[drafted])

    def _draft_ids(self, logits: StepLogits) -> torch.Tensor:
        assert logits.drafts is not None, "drafts are counted in a step that has none"
        return logits.drafts.ids.index_select(0, self._drafts)


class Penalties(Feature):
    """What every slot's request asks for, on the host; the counts are on the device.

    Args:
        vocabulary: the tokens whose logits are here; None: all.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device, vocabulary: range | None = None) -> None:
        self._vocab_size = vocab_size
        self._vocabulary = range(vocab_size) if vocabulary is None else vocabulary
        self._counts = TokenCounts(len(self._vocabulary), device, self._vocabulary.start)
        self._openings: list[Opening] = []
        """Openings of slots filled since the last step was staged."""
        self._used: set[int] = set()
        """Slots whose request asks for anything of this."""
        self._is_penalized: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=bool)
        self._values: Floats = np.zeros((3, num_slots))
        self._bias: dict[int, tuple[Ints, Floats]] = {}
        self._stops: dict[int, tuple[Ints, Floats]] = {}
        self._no_stop_before: Ints = np.zeros(num_slots, dtype=np.int64)
        """Position from which on a stop token may be sampled."""

    def problem(self, new: NewSlot) -> str | None:
        biased = max((token for token, _ in new.sampling.logit_bias), default=0)
        return None if biased < self._vocab_size else f"a bias of token {biased} of {self._vocab_size}"

    def forget(self, slot: int) -> None:
        if slot in self._used:
            self._used.discard(slot)
            self._is_penalized[slot] = False
            self._counts.close(slot)
            self._bias.pop(slot, None)
            self._stops.pop(slot, None)

    def fill(self, new: NewSlot) -> None:
        slot, params = new.slot, new.sampling
        # Stop ids beyond the vocabulary cannot be sampled anyway.
        stops = [token for token in params.stop_token_ids if token < self._vocab_size] if params.min_tokens else []
        if not (params.has_penalties or params.logit_bias or stops):
            return
        self._used.add(slot)
        if params.has_penalties:
            self._is_penalized[slot] = True
            self._values[:, slot] = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
            prompt, outputs = new.history[: new.prompt_len], new.history[new.prompt_len :]
            row = self._counts.row_for(slot)
            self._openings.append(Opening(row, self._columns(_ids(prompt)), self._columns(_ids(outputs))))
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            self._bias[slot] = self._here(_ids(ids), np.array(values, dtype=np.float64))
        if stops:
            self._stops[slot] = self._here(_ids(stops), np.full(len(stops), -np.inf))
            self._no_stop_before[slot] = new.prompt_len + params.min_tokens

    def _columns(self, ids: Ints) -> Ints:
        """Return the columns of the tokens whose logits are here."""
        return ids[self._is_here(ids)] - self._vocabulary.start

    def _here(self, ids: Ints, values: Floats) -> tuple[Ints, Floats]:
        return self._columns(ids), values[self._is_here(ids)]

    def _is_here(self, ids: Ints) -> npt.NDArray[np.bool_]:
        return (ids >= self._vocabulary.start) & (ids < self._vocabulary.stop)

    def stage(self, host: HostBatch) -> StagedPenalties | None:
        if not self._used:
            return None
        slots, positions = host.sample_slots, host.sample_positions
        used = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._used]
        openings, self._openings = self._openings, []
        biased = [(row, self._bias[slot]) for row, slot in used if slot in self._bias]
        stopped = [
            (row, self._stops[slot])
            for row, slot in used
            if slot in self._stops and positions[row] < self._no_stop_before[slot]
        ]
        rows = np.flatnonzero(self._is_penalized[slots])
        if not (biased or stopped or len(rows) or openings):
            return None
        penalized = self._penalized(rows, slots, host.drafts)
        return StagedPenalties(self._counts, openings, _entries(biased), _entries(stopped), penalized)

    def _penalized(self, rows: Ints, slots: Ints, drafts: HostDrafts | None) -> Penalized:
        """Lay out rows with penalties.

        Args:
            rows: [P] of S.
            slots: [S]
        """
        drafted = draft_slots = rows[:0]
        rounds: list[slice] = []
        draft_rounds: list[slice] = []
        if drafts is not None:
            drafted = np.flatnonzero(np.isin(drafts.samples, rows))
            drafted, draft_rounds = _in_rounds(drafted, drafts.depths[drafts.samples[drafted]])
            rows, rounds = _in_rounds(rows, drafts.depths[rows])
            draft_slots = slots[drafts.samples[drafted]]
        count_rows, draft_rows = self._counts.rows(slots[rows]), self._counts.rows(draft_slots)
        return Penalized(rows, count_rows, self._values[:, slots[rows]], drafted, draft_rows, rounds, draft_rounds)


def _in_rounds(members: Ints, depths: Ints) -> tuple[Ints, list[slice]]:
    """Return members in the order of their depths, and those of each depth."""
    counts = np.bincount(depths)
    ends = zip(counts.tolist(), counts.cumsum().tolist(), strict=True)
    return members[depths.argsort(kind="stable")], [slice(end - count, end) for count, end in ends]


def _entries(wanted: Sequence[tuple[int, tuple[Ints, Floats]]]) -> Entries:
    if not wanted:
        return Entries(_ids(()), _ids(()), np.empty(0))
    rows = np.concatenate([np.full(len(ids), row, dtype=np.int64) for row, (ids, _) in wanted])
    ids = np.concatenate([ids for _, (ids, _) in wanted])
    values = np.concatenate([values for _, (_, values) in wanted])
    return Entries(rows, ids, values)


def _ids(tokens: Sequence[int]) -> Ints:
    return np.array(tokens, dtype=np.int64)
