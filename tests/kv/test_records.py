"""Records of recurrent states: who has one, and which is taken when none is free."""

from __future__ import annotations

import random
import time
from array import array

import pytest

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.nodes import Node
from sluice.kv.records import Records
from sluice.types import StateLimits, TierLimits

PAGE = 4


def manager(num_records: int, num_pages: int = 100) -> KVManager:
    return KVManager(num_pages=num_pages, page_size=PAGE, states=StateLimits(block=8, num_records=num_records))


def cached(kv: KVManager, tokens: range) -> list[Node]:
    """Cache the pages of tokens, and return their nodes."""
    return cached_ids(kv, tuple(tokens))


def cached_ids(kv: KVManager, tokens: tuple[int, ...]) -> list[Node]:
    """Do the same for any tokens."""
    ids = array("i", tokens)
    lease = kv.acquire(kv.match(ids, 0, ""), "")
    lease.extend(len(ids))
    lease.release(ids, len(ids))
    return kv.match(ids, len(ids), "")


def records_of(kv: KVManager) -> Records:
    assert kv.records is not None
    return kv.records


def record_at(kv: KVManager, path: list[Node], position: int) -> int:
    """Let the node behind `position` tokens have a record."""
    records = records_of(kv)
    record = records.take()
    assert record is not None
    records.attach(path[position // PAGE - 1], position, record)
    return record


def test_a_prefix_ends_behind_its_last_record() -> None:
    kv = manager(num_records=2)
    path = cached(kv, range(40))
    assert kv.usable(path) == 0
    record_at(kv, path, 8)
    record_at(kv, path, 24)
    assert kv.usable(path) == 6
    assert kv.usable(path[:5]) == 2


def test_nothing_is_cached_without_records() -> None:
    kv = manager(num_records=0)
    assert not kv.tree.enabled
    assert cached(kv, range(40)) == []


def lost(kv: KVManager, nodes: dict[str, Node]) -> list[str]:
    """The names of nodes in the order in which they lose their records, when records are taken one by one."""
    names = []
    for _ in nodes:
        assert records_of(kv).take() is not None
        names += [name for name, node in nodes.items() if node.record < 0 and name not in names]
    return names


def test_records_in_the_middle_of_a_conversation_go_first() -> None:
    kv = manager(num_records=6)
    system = tuple(range(16))
    old, new = (cached_ids(kv, (*system, *range(first, first + 80))) for first in (100, 500))
    nodes = {"fork": old[3], "old, far": old[11], "old, near": old[13], "old, last": old[23]}
    nodes |= {"new, first": new[7], "new, last": new[23]}
    for node, position in zip(nodes.values(), (16, 48, 56, 96, 32, 96), strict=True):
        record = records_of(kv).take()
        assert record is not None
        records_of(kv).attach(node, position, record)
    in_order = ["old, near", "new, first", "old, far", "old, last", "fork", "new, last"]
    assert lost(kv, nodes) == in_order, "when one conversation is left, nothing parts any more"


def test_a_record_far_before_the_next_one_is_in_the_middle_too() -> None:
    kv = manager(num_records=3, num_pages=1200)
    long, other = cached(kv, range(4000)), cached(kv, range(5000, 5040))
    record_at(kv, other, 40)
    middle, last = record_at(kv, long, 800), record_at(kv, long, 4000)
    assert records_of(kv).take() == middle
    assert long[-1].record == last


@pytest.mark.parametrize("seed", range(20))
def test_the_least_useful_record_is_taken_whatever_came_before(seed: int) -> None:
    draw = random.Random(seed)
    kv = manager(num_records=7, num_pages=400)
    paths = [cached_ids(kv, tuple(draw.choices((0, 1), k=2)) * 20) for _ in range(2)]
    for _ in range(8):
        same = draw.choice(paths)[: draw.randint(1, 10)]
        ids = [token for node in same for token in array("i", node.key)]
        paths.append(cached_ids(kv, (*ids, *draw.choices(range(9), k=40))))
    records, by_use = records_of(kv), list[Node]()
    for _ in range(60):
        path = draw.choice(paths)
        node = path[draw.randrange(1, len(path), 2)]
        if node.record >= 0:
            records.forget(node)
            by_use.remove(node)
            continue
        expected = None if records.num_free else min(by_use, key=lost_without)
        record_at(kv, path, 4 * (path.index(node) + 1))
        by_use.append(node)
        if expected is not None:
            assert expected.record < 0
            by_use.remove(expected)
        assert all(each.record >= 0 for each in by_use)


def lost_without(node: Node) -> tuple[int, int]:
    """A sort key of nodes with records, small for those that are taken first."""
    behind, stack = 0, list(node.children.values())
    while stack:
        each = stack.pop()
        behind += each.record >= 0
        stack += each.children.values() if each.record < 0 else ()
    distance, above = 1, node.parent
    while above is not None and above.parent is not None and above.record < 0:
        distance, above = distance + 1, above.parent
    return (0, distance) if behind == 1 else (1 + min(behind, 1), 0)


def test_to_give_records_back_takes_no_longer_if_many_are_free() -> None:
    records = Records(StateLimits(block=8, num_records=50_000), PAGE)
    taken = [record for _ in range(50_000) if (record := records.take()) is not None]
    began = time.process_time()
    for record in taken:
        records.give(record)
    assert time.process_time() - began < 1, "it takes some 10 ms"
    assert records.num_free == 50_000


def test_a_record_is_given_back_once() -> None:
    records = Records(StateLimits(block=8, num_records=2), PAGE)
    record = records.take()
    assert record is not None
    records.give(record)
    with pytest.raises(AssertionError, match="given back twice"):
        records.give(record)


def test_of_last_records_the_one_used_least_recently_goes_first() -> None:
    kv = manager(num_records=2)
    first, second = cached(kv, range(8)), cached(kv, range(100, 180))
    kept = record_at(kv, first, 8)
    other = record_at(kv, second, 80)
    records_of(kv).read(first[1])
    records_of(kv).planned()
    assert records_of(kv).take() == other
    assert first[1].record == kept


def test_what_a_plan_reads_is_not_overwritten_by_it() -> None:
    kv = manager(num_records=1)
    path = cached(kv, range(8))
    record = record_at(kv, path, 8)
    assert records_of(kv).read(path[1]) == record
    assert records_of(kv).take() is None
    records_of(kv).planned()
    assert records_of(kv).take() == record


def test_a_node_that_loses_its_page_loses_its_record() -> None:
    kv = manager(num_records=1, num_pages=10)
    record_at(kv, cached(kv, range(40)), 40)
    ResidentLease(kv, [], "").extend(40)
    assert records_of(kv).num_free == 1


def test_a_record_of_a_node_that_has_lost_its_page_is_free_again() -> None:
    kv = manager(num_records=1, num_pages=10)
    path = cached(kv, range(40))
    made = records_of(kv).take()
    assert made is not None
    ResidentLease(kv, [], "").extend(40)
    records_of(kv).attach(path[-1], 40, made)
    assert (records_of(kv).num_free, records_of(kv).num_held) == (1, 0)


def test_a_second_record_of_a_node_is_free_again() -> None:
    kv = manager(num_records=2)
    path = cached(kv, range(8))
    first = record_at(kv, path, 8)
    record_at(kv, path, 8)
    assert path[1].record == first
    assert records_of(kv).num_free == 1


def test_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="hold no recurrent states"):
        KVManager(num_pages=4, page_size=PAGE, tiers=TierLimits(host_pages=3), states=StateLimits(8, 1))
