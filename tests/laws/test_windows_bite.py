"""Planted bugs in the pages of layers with a window: random lives notice each of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from scenarios import random_window_scenario, run
from sluice.kv import manager
from sluice.kv.manager import ResidentLease
from sluice.kv.nodes import Node
from sluice.kv.usable import usable
from sluice.kv.windows import WindowPages, WindowRow
from sluice.scheduler import admission
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.request import Request

MOST_LIVES = 200

leave, hold, first_seen = ResidentLease.leave, WindowPages.hold, WindowPages.first_seen
hold_prefix = admission.hold_prefix
fill, forget = WindowPages.fill, WindowPages.forget
give_up, shrink, published = WindowRow._give_up, WindowRow.shrink, WindowRow.published


def free_by_what_is_planned(lease: ResidentLease, tokens: array[int], computed: int) -> None:
    """As if drafts in flight were accepted: the pages up to there are all that is known of them here."""
    leave(lease, tokens, max(computed, lease.capacity))


def free_a_position_too_early(windows: WindowPages, start: int) -> int:
    return first_seen(windows, start + 1) if windows.reach else first_seen(windows, start)


def need_a_page_less(path: Sequence[Node], window_pages: int, *, record_every: int) -> int:
    return usable(path, window_pages - 1, record_every=record_every)


def see_no_hole(path: Sequence[Node], window_pages: int, *, record_every: int) -> int:
    return len(path)


def count_on_without_a_page_that_has_come(windows: WindowPages, node: Node, page: int) -> None:
    fill(windows, node, page)
    windows.version -= 1


def count_on_with_a_page_that_has_gone(windows: WindowPages, node: Node) -> None:
    forget(windows, node)
    windows.version -= 1


def overwrite_in_place(adder: PrefillAdder, request: Request, needed: int, to_load: int) -> ResidentLease | None:
    """Compute what is behind a hole again where it is, and not in pages of its own."""
    lease = hold_prefix(adder, request, needed, to_load)
    if lease is not None and lease.window is not None:
        lease.pages += [node.page for node in request.path[len(lease.path) :]]
        lease.capacity = len(lease.pages) * adder.state.kv.page_size
        lease.window.extend(len(lease.pages))
    return lease


def take_a_page_that_is_held(windows: WindowPages, nodes: Sequence[Node]) -> None:
    hold(windows, nodes)
    for node in nodes:
        windows._passed[node] = None


def give_a_page_to_a_node_that_has_one(
    row: WindowRow, indices: range, path: Sequence[Node], twins: Sequence[Node], *, ends: bool
) -> None:
    for index in indices:
        if len(path) <= index < len(twins) and twins[index].window >= 0:
            twins[index].window = row.pages[index]
    give_up(row, indices, path, twins, ends=ends)


def keep_the_pages_of_drafts(row: WindowRow, count: int) -> None:
    if count == len(row.pages):
        shrink(row, count)


def publish_without_holding(row: WindowRow, path: Sequence[Node], start: int) -> None:
    published(row, path, start)
    for node in path[max(start, row.first) :]:
        row._windows.leave(node, is_end=False)


RARE: dict[Callable[..., object], int] = {need_a_page_less: 41, count_on_without_a_page_that_has_come: 109}
"""Bugs that few lives notice -> one that does, and is tried first."""
BUGS: list[tuple[object, str, Callable[..., object]]] = [
    (ResidentLease, "leave", free_by_what_is_planned),
    (WindowPages, "first_seen", free_a_position_too_early),
    (manager, "usable", need_a_page_less),
    (manager, "usable", see_no_hole),
    (WindowPages, "fill", count_on_without_a_page_that_has_come),
    (WindowPages, "forget", count_on_with_a_page_that_has_gone),
    (admission, "hold_prefix", overwrite_in_place),
    (WindowPages, "hold", take_a_page_that_is_held),
    (WindowRow, "_give_up", give_a_page_to_a_node_that_has_one),
    (WindowRow, "shrink", keep_the_pages_of_drafts),
    (WindowRow, "published", publish_without_holding),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=[bug.__name__ for _, _, bug in BUGS])
def test_a_bug_is_noticed(
    owner: object, name: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    for seed in [*range(RARE.get(bug, 0), MOST_LIVES), *range(RARE.get(bug, 0))]:
        try:
            run(random_window_scenario(seed))
        except (AssertionError, KeyError, IndexError):
            return
    pytest.fail(f"{MOST_LIVES} lives did not notice it")
