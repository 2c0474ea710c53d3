"""Planted bugs in the bookkeeping of recurrent states: random lives notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sluice.kv.manager
from scenarios import random_state_scenario, run
from sluice.kv.nodes import Node
from sluice.kv.records import Records
from sluice.scheduler.request import Request
from sluice.scheduler.states import StatePlanner
from sluice.testing.states import ShadowStates
from sluice.types import BatchPlan

MOST_LIVES = 200

Made = tuple[tuple[int, int], ...]

advance = StatePlanner.advance
released, begin = StatePlanner.released, ShadowStates.begin
attach = Records.attach


def keep_the_state_of_a_slot(states: ShadowStates, plan: BatchPlan) -> None:
    kept = {new.slot: states._slots[new.slot] for new in plan.new_slots if new.slot in states._slots}
    begin(states, plan)
    states._slots.update(kept)


def file_a_record_under_the_end_of_the_chunk(planner: StatePlanner, request: Request, end: int) -> tuple[int, Made]:
    firm, made = advance(planner, request, end)
    grid = planner._grid
    moved = [(end // grid * grid, record) for _, record in made[-1:]]
    request.records[len(request.records) - len(made) :] = [*made[:-1], *moved]
    return firm, (*made[:-1], *moved)


def advance_over_drafts(planner: StatePlanner, request: Request, end: int) -> tuple[int, Made]:
    return end, advance(planner, request, end)[1]


def attach_before_the_commit(planner: StatePlanner, request: Request, end: int) -> tuple[int, Made]:
    firm, made = advance(planner, request, end)
    for position, record in made:
        node = planner._node_at(request, position)
        if node is not None:
            request.records.remove((position, record))
            planner._records.attach(node, position, record)
    return firm, made


def use_it_before_the_commit(planner: StatePlanner, request: Request) -> None:
    released(planner, request)
    for save in planner._saves:
        if save.node.record < 0:
            save.node.record = save.record
            planner._records._nodes[save.node] = save.position


def lose_the_records_of_a_failed_request(planner: StatePlanner, request: Request) -> None:
    request.records.clear()
    request.anchor = 0


def save_another_slot(planner: StatePlanner, request: Request) -> None:
    slot, request.slot = request.slot, max(0, request.slot - 1)
    released(planner, request)
    request.slot = slot


def keep_the_record_of_a_page_that_is_gone(records: Records, node: Node) -> None:
    """Nothing is freed."""


def take_the_whole_path(path: list[Node], window_pages: int, *, record_every: int) -> int:
    return len(path)


def count_on_without_a_new_record(records: Records, node: Node, position: int, record: int) -> None:
    before = records.version
    attach(records, node, position, record)
    records.version = before


def begin_behind_the_cache_without_a_record(planner: StatePlanner, request: Request) -> int | None:
    return None


BUGS: list[tuple[Any, str, Callable[..., Any]]] = [
    (ShadowStates, "begin", keep_the_state_of_a_slot),
    *(
        (StatePlanner, "advance", bug)
        for bug in (file_a_record_under_the_end_of_the_chunk, advance_over_drafts, attach_before_the_commit)
    ),
    *((StatePlanner, "released", bug) for bug in (use_it_before_the_commit, save_another_slot)),
    (StatePlanner, "spoilt", lose_the_records_of_a_failed_request),
    (StatePlanner, "opened_from", begin_behind_the_cache_without_a_record),
    (Records, "forget", keep_the_record_of_a_page_that_is_gone),
    (sluice.kv.manager, "usable", take_the_whole_path),
    (Records, "attach", count_on_without_a_new_record),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=[bug.__name__ for _, _, bug in BUGS])
def test_a_bug_is_noticed(owner: Any, name: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    for seed in range(MOST_LIVES):
        try:
            run(random_state_scenario(seed))
        except Exception:  # noqa: BLE001 - whatever notices it
            return
    pytest.fail(f"{MOST_LIVES} lives went well")
