"""The second rows of the page table, of layers with a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shadow_model import shadow_shape
from sluice.runner.device_state import DeviceState
from sluice.runner.page_table import PageTable, WindowTable
from sluice.runner.windows import WindowShape
from sluice.types import BatchPlan, Chunk, NewSlot, PlanError, SamplingParams, Submit

NULL = 99
PARAMS = SamplingParams(temperature=0.0, seed=0)


@given(
    length=st.integers(1, 12),
    page_size=st.integers(1, 4),
    rows=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=3),
)
def test_a_row_shows_what_its_queries_see(length: int, page_size: int, rows: list[tuple[int, int]]) -> None:
    """Rows are (start, tokens). A page that no query sees is the null page, before the window and behind the row."""
    table = PageTable(4, 30, torch.device("cpu"), scratch_page=7, window=WindowTable(length, NULL, scratch_page=8))
    full = list(range(30))
    changes = table.plan([], [(slot, 0, full) for slot in range(4)], [(slot, 0, full) for slot in range(4)])
    table.change(*map(torch.from_numpy, changes))
    ends = [start + count for start, count in rows]
    starts = torch.tensor([0, *[count for _, count in rows]]).cumsum(0).to(torch.int32)
    width = -(-max(ends) // page_size)
    shown = table.window_rows(torch.arange(len(rows)), torch.tensor(ends), starts, width, page_size)
    for (start, _), end, row in zip(rows, ends, shown.tolist(), strict=True):
        seen = {at // page_size for at in range(max(0, start - length + 1), end)}
        assert row == [page if page in seen else NULL for page in range(width)]


def test_second_rows_are_apart_from_the_first() -> None:
    """Also those that only pad a batch, and a row that is emptied."""
    table = PageTable(2, 3, torch.device("cpu"), scratch_page=7, window=WindowTable(5, NULL, scratch_page=8))
    changes = table.plan([1], [(1, 0, [4, 5])], [(1, 0, [2, 3])])
    table.change(*map(torch.from_numpy, changes))
    slots, lens, starts = torch.tensor([1, 2]), torch.tensor([4, 1]), torch.tensor([0, 4, 5])
    assert table.rows(slots, lens, 2, 2).tolist() == [[4, 5], [7, 0]]
    assert table.window_rows(slots, lens, starts, 2, 2).tolist() == [[2, 3], [8, NULL]]
    assert table.window_host is not None
    assert table.window_host[1].tolist() == [2, 3, 0]


GOOD = Chunk(1, 0, 0, 5, (1, 2, 3, 4, 5), (2, 3), True, new_window_pages=(0, 1))


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (GOOD._replace(new_window_pages=(0, 2)), "pages 0..2 of windows of 2"),
        (GOOD._replace(new_window_pages=(-1, 1)), "pages -1..1 of windows of 2"),
        (GOOD._replace(new_window_pages=()), "2 new pages, and 0 of windows"),
        (GOOD._replace(new_window_pages=(0, 1, 1)), "3 pages of windows for 5 tokens"),
    ],
)
def test_bad_pages_of_windows_are_refused(chunk: Chunk, message: str) -> None:
    shape = replace(shadow_shape(num_pages=8, page_size=4), window=WindowShape(3, 2, (True,)))
    state, new = DeviceState(shape), (NewSlot(0, Submit(1, (), PARAMS)),)
    state.check(BatchPlan(3, new, (GOOD,)))
    with pytest.raises(PlanError, match=message):
        state.check(BatchPlan(3, new, (chunk,)))
    with pytest.raises(PlanError, match="of windows, which no layer has"):
        DeviceState(replace(shape, window=None)).check(BatchPlan(3, new, (GOOD,)))


def test_the_null_page_is_zero() -> None:
    shape = replace(shadow_shape(num_pages=8, page_size=4), window=WindowShape(3, 2, (True,)), scratch_pages=1)
    (layer,) = DeviceState(shape).kv
    assert layer.k.shape[0] == 4, "two pages, the scratch page and the null page"
    assert not layer.k[3].any()
    assert not layer.v[3].any()
