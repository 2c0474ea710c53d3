"""Planted bugs in chunks that are divided among steps: random lives notice each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scenarios import random_sliced_scenario, run
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.types.layer_items import LayerItems

MOST_LIVES = 240

add_layers, open_chunk, drain = BatchBuilder.add_layers, BatchBuilder.open_chunk, SchedulerState._drain


def skip_a_layer(batch: BatchBuilder, request: Request, count: int, num_layers: int) -> None:
    sliced = request.sliced
    assert sliced is not None
    if 0 < sliced.planned < num_layers - count:
        sliced.planned += 1
    add_layers(batch, request, count, num_layers)


def compute_a_layer_twice(batch: BatchBuilder, request: Request, count: int, num_layers: int) -> None:
    add_layers(batch, request, count, num_layers)
    if request.sliced is not None and request.sliced.planned > 1:
        request.sliced.planned -= 1


def count_it_as_computed_at_once(batch: BatchBuilder, request: Request, count: int, num_layers: int) -> None:
    add_layers(batch, request, count, num_layers)
    if request.sliced is not None:
        request.computed = request.sliced.chunk.end


def forget_what_is_pending(batch: BatchBuilder, request: Request, count: int, num_layers: int) -> None:
    pending = request.pending
    add_layers(batch, request, count, num_layers)
    request.pending = pending


def forget_what_is_in_flight(batch: BatchBuilder, request: Request, count: int, num_layers: int) -> None:
    in_flight = request.in_flight
    add_layers(batch, request, count, num_layers)
    request.in_flight = in_flight


def move_on_before_the_end(batch: BatchBuilder, request: Request, length: int) -> None:
    open_chunk(batch, request, length)
    request.scheduled += length


def bring_the_pages_twice(batch: BatchBuilder, request: Request, length: int) -> None:
    open_chunk(batch, request, length)
    assert request.sliced is not None
    chunk = request.sliced.chunk
    request.sliced.chunk = chunk._replace(new_pages=chunk.new_pages * 2)


def leave_the_slot_at_once(state: SchedulerState, request: Request) -> None:
    if request.sliced is not None:
        request.in_flight = 0
    drain(state, request)


def cross_a_round(items: LayerItems, item: int) -> int:
    return items.total


BUGS: list[tuple[type, str, Callable[..., object]]] = [
    *((BatchBuilder, "add_layers", bug) for bug in (skip_a_layer, compute_a_layer_twice, count_it_as_computed_at_once)),
    *((BatchBuilder, "add_layers", bug) for bug in (forget_what_is_pending, forget_what_is_in_flight)),
    *((BatchBuilder, "open_chunk", bug) for bug in (move_on_before_the_end, bring_the_pages_twice)),
    (SchedulerState, "_drain", leave_the_slot_at_once),
    (LayerItems, "end_of_round", cross_a_round),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=[bug.__name__ for _, _, bug in BUGS])
def test_a_bug_is_noticed(owner: type, name: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    for seed in range(MOST_LIVES):
        try:
            run(random_sliced_scenario(seed))
        except Exception:  # noqa: BLE001 - whatever notices it
            return
    pytest.fail(f"{MOST_LIVES} lives went well")
