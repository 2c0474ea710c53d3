"""What layers with a recurrent state keep of each slot, and where the rows of a step find it.

A layer of this kind (a short convolution, Mamba-2, a gated delta net) reads no keys and values of earlier tokens: it
reads a state that they have left. A slot keeps it so that any of the last tokens may be computed once more:

    S          the state behind exactly `anchor` tokens, where the anchor is a multiple of `BLOCK`
    tail       what the tokens from the anchor on have put in
    columns    the inputs of the convolution of the last tokens

What a token gives is computed from the state at the block's beginning and from the tail, always in the same order of
sums, whether it comes in a long chunk, in a short one or alone. So its bits do not depend on where chunks were cut.
The anchor moves over *firm* tokens only, those that no later step can compute again; of others (rejected drafts, a
token that brought no output) the tail is overwritten.

A *record* is a copy of S and the columns before it, made where the anchor passes a position, and never changed. A
request that begins with a cached prefix opens its slot from the record at the prefix's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

import torch

BLOCK = 64
"""Tokens between two places at which an anchor may be."""


def anchor_of(firm: int) -> int:
    """Return where the anchor of a slot is whose first `firm` tokens are firm."""
    return firm // BLOCK * BLOCK


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Sizes of the state of one layer. All layers of a model that have one have the same."""

    channels: int
    """Inputs of the convolution for a token."""
    taps: int
    """Tokens that the convolution sees: it needs the columns of `taps - 1` earlier ones."""
    dtype: torch.dtype
    """Of the columns: the model's."""
    key_heads: int = 0
    """Heads of k and q, each shared by as many value heads. 0: the layer is a convolution alone."""
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    takes_turns: bool = False
    """Which k head a value head h shares: with r value heads for each of n k heads, h // r; if True, h % n."""

    @property
    def state_dtype(self) -> torch.dtype:
        """Of S and of the tail: float64 for a model in float64, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def record_bytes(self) -> int:
        """Bytes of one record of the layer."""
        state = self.value_heads * self.key_dim * self.value_dim * self.state_dtype.itemsize
        return state + (self.taps - 1) * self.channels * self.dtype.itemsize

    def slot_bytes(self, reach: int) -> int:
        """Return the bytes of one slot of the layer.

        Args:
            reach: as in `StatePool`.
        """
        token = self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1)
        tail = (BLOCK + reach) * token * self.state_dtype.itemsize
        return self.record_bytes + tail + (self.taps - 1 + reach) * self.channels * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer keeps. Slots [slots, ...] and records [records, ...] are views with strided rows."""

    spec: StateSpec
    s: torch.Tensor
    """[slots, value_heads, key_dim, value_dim], at the anchor"""
    anchor_columns: torch.Tensor
    """[slots, taps - 1, channels], of the tokens before the anchor; zeros before the first token"""
    columns: torch.Tensor
    """[slots, taps - 1 + reach, channels], that of the token at position p at `p % size`"""
    k: torch.Tensor
    """[slots, BLOCK + reach, key_heads, key_dim], that of the token at position p at `p - anchor`, as u and g"""
    u: torch.Tensor
    """[slots, BLOCK + reach, value_heads, value_dim]: what the token adds to the state, before decay"""
    g: torch.Tensor
    """[slots, BLOCK + reach, value_heads]: the logarithm of the decay from the beginning of its block to it, itself
    included; with Triton's kernels, of the token alone"""
    records_s: torch.Tensor
    """[records, value_heads, key_dim, value_dim]"""
    records_columns: torch.Tensor
    """[records, taps - 1, channels]"""


class StatePool:
    """The states of all slots, and records, of all layers that have a state.

    Slots are left uninitialised until they are opened, so that a CPU commits only the memory of those in use.

    Args:
        spec: of each layer.
        layers: how many have a state.
        num_slots: with one more for rows that only pad a batch, if there are such.
        num_records: most records.
        reach: most tokens behind the firm ones that can be computed before these are firm: drafts, and tokens of
            steps in flight.
        is_shared: all slots are one in memory, for a step on meaningless data.
    """

    def __init__(
        self,
        spec: StateSpec,
        layers: int,
        num_slots: int,
        num_records: int,
        reach: int,
        device: torch.device,
        *,
        is_shared: bool = False,
    ) -> None:
        self.spec = spec
        self.reach = reach
        wide, before, tail = spec.state_dtype, spec.taps - 1, BLOCK + reach
        size = (spec.value_heads, spec.key_dim, spec.value_dim)

        def empty(rows: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
            own = min(rows, 1) if is_shared else rows
            return torch.empty((own, layers, *shape), dtype=dtype, device=device).expand(rows, -1, *shape)

        self._s = empty(num_slots, *size, dtype=wide)
        self._anchor_columns = empty(num_slots, before, spec.channels, dtype=spec.dtype)
        self._columns = empty(num_slots, before + reach, spec.channels, dtype=spec.dtype)
        self._k = empty(num_slots, tail, spec.key_heads, spec.key_dim, dtype=wide)
        self._u = empty(num_slots, tail, spec.value_heads, spec.value_dim, dtype=wide)
        self._g = empty(num_slots, tail, spec.value_heads, dtype=wide)
        self._records_s = empty(num_records, *size, dtype=wide)
        self._records_columns = empty(num_records, before, spec.channels, dtype=spec.dtype)
        self.layers = tuple(self._layer(number) for number in range(layers))

    def _layer(self, number: int) -> LayerState:
        parts = self._s, self._anchor_columns, self._columns, self._k, self._u, self._g
        records = self._records_s, self._records_columns
        return LayerState(self.spec, *(part[:, number] for part in (*parts, *records)))

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(part.nbytes for part in (self._s, self._anchor_columns, self._columns, self._k, self._u, self._g))

    @property
    def record_bytes(self) -> int:
        """Bytes of all records."""
        return self._records_s.nbytes + self._records_columns.nbytes

    def save(self, slot: int, record: int) -> None:
        """Copy the state at a slot's anchor to a record."""
        self._records_s[record] = self._s[slot]
        self._records_columns[record] = self._anchor_columns[slot]

    def open(self, slot: int, position: int, record: int | None) -> None:
        """Give a slot the state of a record, which was made behind exactly `position` tokens, a multiple of `BLOCK`;
        None: that of no tokens."""
        if record is None:
            assert position == 0, f"slot {slot} begins at {position} without a record"
            for part in (self._s, self._anchor_columns, self._columns):
                part[slot] = 0
            return
        assert position % BLOCK == 0, f"a record at {position}"
        columns, before = self._records_columns[record], self.spec.taps - 1
        self._s[slot] = self._records_s[record]
        self._anchor_columns[slot] = columns
        for back in range(1, before + 1):
            self._columns[slot, :, (position - back) % (before + self.reach)] = columns[:, before - back]


class StateRow(NamedTuple):
    """One row of a step."""

    slot: int
    start: int
    end: int
    anchor: int
    new_anchor: int
    first: int
    """Of the step's tokens, that at `start`."""
    exports: tuple[tuple[int, int], ...]
    """(position, record)"""

    @property
    def tokens(self) -> slice:
        """Of the step."""
        return slice(self.first, self.first + self.end - self.start)


@dataclass(frozen=True, slots=True)
class StateRows:
    """Where the rows of a step find their states. B = rows, in the order of the batch."""

    slots: tuple[int, ...]
    """[B]"""
    starts: tuple[int, ...]
    """[B] position of the row's first token"""
    anchors: tuple[int, ...]
    """[B] where the anchor of the slot is before the step"""
    new_anchors: tuple[int, ...]
    """[B] where it is after the step, at most at the row's end"""
    exports: tuple[tuple[int, int, int], ...] = ()
    """(row, position, record), ascending: records to make. A position is a multiple of `BLOCK` behind `anchors` and at
    most at `new_anchors` of the row"""
    table: StateTable | None = field(default=None, compare=False)
    """Of a step that is captured: from where kernels read the rows when it is replayed. Those above only pad it."""

    @classmethod
    def fresh(cls, slots: tuple[int, ...], lengths: tuple[int, ...]) -> Self:
        """Return rows of `lengths` tokens that begin their slots, and whose tokens are all firm."""
        zeros = (0,) * len(slots)
        return cls(slots, zeros, zeros, tuple(anchor_of(length) for length in lengths))

    def padded(self, slot: int, count: int) -> StateRows:
        """Return these rows and `count` others that begin at position 0 of a slot."""
        zeros = (0,) * count
        places = (self.starts + zeros, self.anchors + zeros, self.new_anchors + zeros)
        return StateRows(self.slots + (slot,) * count, *places, self.exports)

    def split(self, q_lens: tuple[int, ...]) -> Iterator[StateRow]:
        """Yield the rows, of `q_lens` tokens each."""
        first = 0
        for row, length in enumerate(q_lens):
            start, exports = self.starts[row], tuple(made[1:] for made in self.exports if made[0] == row)
            places = self.anchors[row], self.new_anchors[row], first, exports
            yield StateRow(self.slots[row], start, start + length, *places)
            first += length


@dataclass(frozen=True, slots=True)
class StateTable:
    """The rows of a step as kernels on the host read them, of `StateRow` and `StateExport` in `abi.h`."""

    rows: torch.Tensor
    """[B, 8] int32: slot, anchor, start, end, new anchor, the first token, the first export, exports"""
    exports: torch.Tensor
    """[exports or more, 2] int32: position, record"""

    @classmethod
    def empty(cls, rows: int, exports: int) -> Self:
        """Return a table for so many rows and exports."""
        return cls(torch.zeros((rows, 8), dtype=torch.int32), torch.zeros((exports, 2), dtype=torch.int32))

    @classmethod
    def of(cls, rows: StateRows, q_lens: tuple[int, ...]) -> Self:
        """Return the rows of a step of `q_lens` tokens each."""
        table = cls.empty(len(q_lens), len(rows.exports))
        table.fill(rows, q_lens)
        return table

    def fill(self, rows: StateRows, q_lens: tuple[int, ...]) -> None:
        """Write the rows of a step with as many rows, and no more exports than there is room for."""
        places: list[tuple[int, ...]] = []
        made: list[tuple[int, int]] = []
        for row in rows.split(q_lens):
            ends = row.start, row.end, row.new_anchor, row.first
            places.append((row.slot, row.anchor, *ends, len(made), len(row.exports)))
            made += row.exports
        self.rows.copy_(torch.tensor(places, dtype=torch.int32))
        if made:
            self.exports[: len(made)] = torch.tensor(made, dtype=torch.int32)


class StateStep(NamedTuple):
    """What an operation of a layer with a state works on: the layer's state, and a step's rows, which have theirs in
    it."""

    state: LayerState
    rows: StateRows
    q_lens: tuple[int, ...]
    """[B] tokens of each row"""

    def split(self) -> Iterator[StateRow]:
        return self.rows.split(self.q_lens)


Made = TypeVar("Made")


class OncePerStep(Generic[Made]):
    """What kernels need of the rows of a step, made for its first layer and kept for the others.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[StateStep], Made]) -> None:
        self._make = make
        self._last: tuple[StateRows, tuple[int, ...], Made] | None = None

    def of(self, step: StateStep) -> Made:
        """Return it for the rows of a step."""
        if self._last is None or self._last[0] is not step.rows or self._last[1] is not step.q_lens:
            self._last = step.rows, step.q_lens, self._make(step)
        return self._last[2]
