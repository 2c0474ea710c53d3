"""A plan as tensors, against a reference that takes one token at a time."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shadow_model import shadow_shape
from sluice.runner.device_state import DeviceState
from sluice.runner.inputs import host_batch
from sluice.types import BatchPlan, Chunk, NewSlot, SamplingParams, Submit

PARAMS = SamplingParams(seed=0)
SLOTS, PAGES, VOCAB = 6, 64, 50


@st.composite
def plans(draw: st.DrawFn, page_size: int) -> BatchPlan:
    """Decodes first, then longer chunks; pages are dealt from a shuffled pool, some of them in advance."""
    pool = iter(draw(st.permutations(range(PAGES))))
    slots = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True))
    lengths = sorted((draw(st.sampled_from([1, 1, 2, 3, 9])) for _ in slots), key=lambda length: length > 1)
    chunks = []
    for slot, length in zip(slots, lengths, strict=True):
        start = draw(st.integers(0, 3 * page_size))
        count = min(-(-(start + length) // page_size) + draw(st.integers(0, 1)), PAGES // SLOTS)
        is_late = draw(st.booleans())
        ids = tuple(draw(st.integers(1, VOCAB - 1)) for _ in range(length - is_late))
        pages = tuple(next(pool) for _ in range(count))
        targets = tuple(draw(st.integers(0, VOCAB - 1)) for _ in range(draw(st.integers(0, length))))
        drafts = draw(st.integers(0, length - 1)) if len(ids) == length else 0
        samples, targets = (True, ()) if drafts else (draw(st.booleans()), targets)
        chunks.append(Chunk(100 + slot, slot, start, length, ids, pages, samples, targets, num_drafts=drafts))
    new_slots = tuple(NewSlot(chunk.slot, Submit(chunk.request_id, (), PARAMS)) for chunk in chunks)
    return BatchPlan(7, new_slots, tuple(chunks))


def apply(state: DeviceState, plan: BatchPlan) -> None:
    """On the host and, at once, on the device."""
    changes = state.apply(plan)
    state.change(*map(torch.from_numpy, changes))


@given(st.data(), st.sampled_from([2, 3, 8]))
def test_batch_is_what_the_loop_says(data: st.DataObject, page_size: int) -> None:
    plan = data.draw(plans(page_size))
    state = DeviceState(shadow_shape(num_pages=PAGES, page_size=page_size, num_slots=SLOTS, vocab_size=VOCAB))
    state.check(plan)
    apply(state, plan)
    state.last_tokens.write(torch.arange(SLOTS), torch.arange(SLOTS) + 40)
    host = host_batch(plan, state.page_table.host, page_size)
    batch = state.forward_batch(host, [*map(torch.from_numpy, host.arrays)])

    ids, positions, kv_slots, tables, ends, logit_rows, sampling = [], [], [], [], [], [], []
    target_ids, before_targets, target_rows, drafts = [], [], [], []
    for row, chunk in enumerate(plan.chunks):
        for i in range(chunk.length):
            position = chunk.start + i
            ids.append(chunk.token_ids[i] if i < len(chunk.token_ids) else 40 + chunk.slot)
            positions.append(position)
            kv_slots.append(chunk.new_pages[position // page_size] * page_size + position % page_size)
        ends.append(len(ids))
        tables.append([*chunk.new_pages[: -(-chunk.end // page_size)]])
        for i, target in enumerate(chunk.targets):
            before_targets.append(len(ids) - chunk.length + i)
            target_ids.append(target)
        if chunk.targets:
            target_rows.append((row, len(chunk.targets)))
        if chunk.samples:
            logit_rows.extend(range(len(ids) - 1 - chunk.num_drafts, len(ids)))
            sampling.extend((row, chunk.slot, position) for position in range(chunk.known_end, chunk.end + 1))
            drafts.extend(chunk.drafts)
    widest = max(len(table) for table in tables)
    decodes = 0
    while decodes < len(plan.chunks) and plan.chunks[decodes].length == 1:
        decodes += 1

    assert batch.input_ids.tolist() == ids
    assert batch.positions.tolist() == positions
    assert batch.kv_slots.tolist() == kv_slots
    assert batch.page_table.tolist() == [table + [0] * (widest - len(table)) for table in tables]
    assert batch.q_starts.tolist() == [0, *ends]
    assert batch.kv_lens.tolist() == [*batch.kv_lens_host] == [chunk.end for chunk in plan.chunks]
    assert batch.q_lens == tuple(chunk.length for chunk in plan.chunks)
    assert batch.logit_rows.tolist() == logit_rows + before_targets
    assert host.target_ids.tolist() == target_ids
    assert host.target_rows == tuple(target_rows)
    assert batch.num_decodes == decodes
    rows = zip(host.sample_rows.tolist(), host.sample_slots.tolist(), host.sample_positions.tolist(), strict=True)
    assert [*rows] == sampling
    assert host.slots_of_rows.tolist() == [chunk.slot for chunk in plan.chunks if chunk.samples]
    assert (host.drafts.ids.tolist() if host.drafts else []) == drafts
    if host.drafts:
        places = host.sample_positions[host.drafts.samples].tolist()
        assert places == [chunk.known_end + i for chunk in plan.chunks for i in range(chunk.num_drafts)]
    assert {batch.page_table.dtype, batch.q_starts.dtype, batch.kv_lens.dtype} == {torch.int32}
    assert {t.dtype for t in (batch.input_ids, batch.positions, batch.kv_slots, batch.logit_rows)} == {torch.int64}


@given(st.data())
def test_page_tables_agree(data: st.DataObject) -> None:
    """The host's copy and the device's rows are the same after any sequence of steps."""
    state = DeviceState(shadow_shape(num_pages=PAGES, page_size=4, num_slots=SLOTS, vocab_size=VOCAB))
    rows: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        plan = data.draw(plans(4))
        apply(state, plan)
        rows.update({chunk.slot: [*chunk.new_pages] for chunk in plan.chunks})
        grown = data.draw(st.sampled_from(sorted(rows)))
        before = len(rows[grown])
        rows[grown][-data.draw(st.integers(0, 1)) or before :] = [3, 9]  # the last one may have held drafts alone
        start = 4 * len(rows[grown]) - 1
        apply(state, BatchPlan(8, (), (Chunk(1, grown, start, 1, (1,), (3, 9), True),)))
    expected = np.zeros((SLOTS, PAGES), dtype=np.int32)
    for slot, pages in rows.items():
        expected[slot, : len(pages)] = pages
    assert (state.page_table.host == expected).all()
    full = torch.full((SLOTS,), PAGES * 4, dtype=torch.int32)
    assert (state.page_table.rows(torch.arange(SLOTS), full, PAGES, 4).numpy() == expected).all()


def test_pages_that_all_decodes_begin_with() -> None:
    """A page that some row ends in, or that not all rows share, is no shared prefix; neither is a page of one row."""
    tables = [[5, 6, 7, 1], [5, 6, 7, 2], [5, 6, 3, 4]]

    def shared(ends: list[int], rows: list[list[int]]) -> int:
        state = DeviceState(shadow_shape(num_pages=PAGES, page_size=4, num_slots=SLOTS, vocab_size=VOCAB))
        chunks = tuple(
            Chunk(slot, slot, end - 1, 1, (1,), tuple(row), True)
            for slot, (end, row) in enumerate(zip(ends, rows, strict=True))
        )
        prompt = Chunk(9, 5, 0, 2, (1, 2), (40,), True)
        new_slots = tuple(NewSlot(chunk.slot, Submit(chunk.request_id, (), PARAMS)) for chunk in (*chunks, prompt))
        plan = BatchPlan(0, new_slots, (*chunks, prompt))
        apply(state, plan)
        return host_batch(plan, state.page_table.host, 4).shared_pages

    assert shared([13, 14, 15], tables) == 2
    assert shared([13, 14], tables[:2]) == 3
    assert shared([12, 14], tables[:2]) == 2, "its last page may only be half full in other steps"
    assert shared([4, 14], tables[:2]) == 0
    assert shared([13], tables[:1]) == 0
    assert shared([13, 14, 15], [*tables[:2], [9, 6, 3, 4]]) == 0
