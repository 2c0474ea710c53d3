"""The shadow model with a recurrent state: a hash of the tokens that its slot has taken in, and the last of them.

The state is kept as layers keep theirs (`attention/states.py`): a hash at the anchor, and a tail. It has no rounding,
so each row can be asked whether its state is exactly that of the tokens in its pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shadow_model import ShadowModel, shadow_shape
from sluice.attention.base import Attention, ForwardBatch, LayerKV, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.states import BLOCK, LayerState, StateRows, StateSpec
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.layers import LayerSlices, Walk
from sluice.runner.runner import TorchRunner

SPEC = StateSpec(channels=1, taps=4, dtype=torch.float64, key_heads=1, key_dim=1, value_heads=1, value_dim=1)
MODULUS, FACTOR = 33_554_393, 1_103_515
"""So that a product of the two is exact in float64."""


def added(state: int, token: int) -> int:
    """Return the state behind one token more."""
    return (state * FACTOR + token + 1) % MODULUS


def state_of(tokens: Sequence[int]) -> int:
    """Return the state behind tokens."""
    state = 0
    for token in tokens:
        state = added(state, token)
    return state


class WrongState(AssertionError):
    """The state of a row is not that of its tokens."""


@dataclass(frozen=True)
class StateModel(ShadowModel):
    """A shadow model that checks the state of each row, as it moves it, against the tokens in the row's pages.

    Args:
        poison: as of `ShadowModel`.
    """

    def forward(self, batch: ForwardBatch, kv: Sequence[LayerKV], attention: Attention) -> torch.Tensor:
        logits = super().forward(batch, kv, attention)
        assert batch.states is not None, "a batch without states"
        first = 0
        for row, (length, tokens) in enumerate(zip(batch.q_lens, self._seen(batch, kv[0]), strict=True)):
            new = batch.input_ids[first : first + length].tolist()
            for layer in batch.layer_states:
                take_in(layer, batch.states, row, [int(token) for token in new], tokens)
            first += length
        return logits


def take_in(layer: LayerState, rows: StateRows, row: int, new: list[int], tokens: list[int]) -> None:
    """Take the new tokens of a row in.

    Args:
        tokens: all tokens up to the row's end, as its pages hold them.

    Raises:
        WrongState: what is kept of the row is not what these tokens leave.
    """
    slot, start, anchor = rows.slots[row], rows.starts[row], rows.anchors[row]
    target, end, before = rows.new_anchors[row], rows.starts[row] + len(new), layer.spec.taps - 1
    size = layer.columns.shape[1]
    if layer.s[slot].item() != state_of(tokens[:anchor]):
        raise WrongState(f"slot {slot}: the state at {anchor} is not that of {tokens[:anchor]}")
    tail = [int(each) for each in layer.u[slot, : start - anchor, 0, 0].tolist()]
    left = [int(layer.columns[slot, (start - back) % size, 0]) for back in range(before, 0, -1)]
    if tail != tokens[anchor:start]:
        raise WrongState(f"slot {slot}: the tail from {anchor} to {start} is {tail}, not {tokens[anchor:start]}")
    if left != [0, 0, 0, *(token + 1 for token in tokens[:start])][-before:]:
        raise WrongState(f"slot {slot}: the columns before {start} are {left}, of {tokens[:start]}")
    inside, columns = [*tail, *new], [0] * before + [token + 1 for token in tokens[:end]]
    exports = {position: record for each, position, record in rows.exports if each == row}
    state = int(layer.s[slot])
    for position in range(anchor + BLOCK, end + 1, BLOCK):
        for token in inside[position - BLOCK - anchor : position - anchor]:
            state = added(state, token)
        if position in exports:
            layer.records_s[exports.pop(position)] = state
        if position == target:
            layer.s[slot] = state
    for each, position, record in rows.exports:
        if each == row:
            layer.records_columns[record] = torch.tensor(columns[position : position + before])[:, None]
    if exports:
        raise WrongState(f"no record at {exports} of a row from {anchor} to {end}")
    layer.anchor_columns[slot] = torch.tensor(columns[target : target + before])[:, None]
    kept = inside[target - anchor :]
    layer.u[slot, : len(kept), 0, 0] = torch.tensor(kept, dtype=torch.float64)
    layer.u[slot, len(kept) :] = torch.nan
    for position in range(max(start, end - size), end):
        layer.columns[slot, position % size] = new[position - start] + 1


def state_shape(
    *, num_pages: int, page_size: int, num_slots: int = 4, reach: int = 1, num_records: int = 0, vocab_size: int = 50
) -> DeviceShape:
    """Return sizes of a device for the model."""
    shape = shadow_shape(num_pages=num_pages, page_size=page_size, num_slots=num_slots, vocab_size=vocab_size)
    return replace(shape, state=SPEC, num_states=1, reach=reach, num_records=num_records)


def state_runner(shape: DeviceShape, *, num_layers: int = 0, poison: int | None = None) -> TorchRunner:
    """Return a runner over the model, whose memory holds NaN where nothing was written.

    Args:
        num_layers: that a chunk is said to have when it is divided among steps.
    """
    state, attention, model = DeviceState(shape), ReferenceAttention(), StateModel(shape.vocab_size, poison)
    assert state.states is not None, f"{shape} has no states"
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    for kept in state.states.pool.layers:
        parts = kept.s, kept.anchor_columns, kept.columns, kept.k, kept.u, kept.g, kept.records_s, kept.records_columns
        for part in parts:
            part.fill_(torch.nan)

    def walk(batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> Walk:
        assert batch.states is not None, "a batch without states"
        slots = list(batch.states.slots)
        before = [layer.s[slots] for layer in batch.layer_states]
        for _ in range(num_layers):
            for layer in batch.layer_states:
                layer.s[slots] = torch.nan  # a chunk that is left half done leaves nothing to go on from
            yield
        for layer, state in zip(batch.layer_states, before, strict=True):
            layer.s[slots] = state
        return model.forward(batch, kv, attention), []

    layers = LayerSlices(walk, state, attention) if num_layers else None
    return TorchRunner(model, state, attention, layers=layers)
