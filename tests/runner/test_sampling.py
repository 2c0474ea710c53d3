"""Each slot keeps its own request's parameters."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from features import sampling_rows
from sluice.runner.features.sampling import Sampling
from sluice.runner.noise import noise_key
from sluice.runner.sampler import row_kind
from sluice.types import NewSlot, SamplingParams, Submit

SLOTS, VOCAB = 5, 60
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 7, 59, 60, 100]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(-(2**63), 2**64 - 1),
)
SUBMITS = st.builds(Submit, st.just(0), st.just(()), PARAMS, st.integers(0, 3))
NEW_SLOTS = st.builds(NewSlot, st.integers(0, SLOTS - 1), SUBMITS)


@given(st.lists(NEW_SLOTS, min_size=1, max_size=9), st.data())
def test_a_step_gets_what_its_slots_were_last_filled_with(filled: list[NewSlot], data: st.DataObject) -> None:
    table = Sampling(SLOTS, VOCAB, torch.device("cpu"))
    for new in filled:
        table.fill(new)
    latest = {new.slot: new for new in filled}
    slots = data.draw(st.lists(st.sampled_from(sorted(latest)), unique=True))
    positions = np.array([10 * slot for slot in slots], dtype=np.int64)
    step = table.stage(sampling_rows(slots, positions))
    step.arrive([*map(torch.from_numpy, step.arrays)])
    rows, wanted = step.rows, [latest[slot] for slot in slots]
    assert rows.positions.tolist() == positions.tolist()
    assert rows.temperature.tolist() == [new.sampling.temperature for new in wanted]
    assert rows.top_p.tolist() == [new.sampling.top_p for new in wanted]
    assert rows.min_p.tolist() == [new.sampling.min_p for new in wanted]
    effective = [new.sampling.top_k if new.sampling.top_k > 0 else VOCAB for new in wanted]
    assert rows.top_k.tolist() == effective
    assert rows.noise_keys.tolist() == [noise_key(new.sampling.seed or 0, new.sample_index) for new in wanted]
    kinds = {row: group.kind for group in step.groups for row in group.rows.tolist()}
    assert kinds == {row: row_kind(new.sampling, VOCAB) for row, new in enumerate(wanted)}
    assert sum(len(group.rows) for group in step.groups) == len(slots)
