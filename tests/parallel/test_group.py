"""Groups: ranks that compute together see the same values, and none waits for one that has left."""

from __future__ import annotations

import pytest
import torch

from sluice.parallel.group import Alone, Group, GroupError
from sluice.parallel.layout import Layout
from thread_groups import ThreadGroup, run_ranks


def test_a_rank_that_is_alone_has_what_it_gives() -> None:
    x = torch.arange(3.0)
    assert torch.equal(Alone().all_reduce(x), x)
    assert torch.equal(Alone().all_gather(x), x[None])
    with pytest.raises(GroupError, match="has no rank 1"):
        Alone().send(x, 1)


def test_threads_see_the_same_sums_in_the_order_of_the_ranks() -> None:
    def body(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([float(group.rank), 1.0])
        gathered = group.all_gather(x)
        x.fill_(-1)  # it may be changed at once
        return gathered, group.all_reduce(torch.tensor([10.0 * group.rank]))

    for gathered, total in run_ranks(ThreadGroup.make(3), body):
        assert gathered.tolist() == [[0, 1], [1, 1], [2, 1]]
        assert total.tolist() == [30]


def test_what_is_sent_arrives_in_order_and_may_be_changed_at_once() -> None:
    def body(group: Group) -> list[float]:
        x = torch.zeros(1)
        if group.rank == 0:
            for value in (1, 2):
                group.send(x.fill_(value), 1)
            return []
        return [group.recv(x, 0).item() for _ in range(2)]

    assert run_ranks(ThreadGroup.make(2), body) == [[], [1, 2]]


def test_a_rank_that_fails_ends_the_others() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            raise ValueError("broken")
        if group.rank == 2:
            group.recv(torch.zeros(1), 1)
        group.all_reduce(torch.zeros(1))

    with pytest.raises(ValueError, match="broken"):
        run_ranks(ThreadGroup.make(3), body)


@pytest.mark.parametrize(("stages", "layers"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1])])
def test_stages_hold_all_layers_in_order(stages: int, layers: list[int]) -> None:
    layout = Layout(tensor_size=2, pipeline_size=stages)
    places = [layout.place(rank) for rank in range(layout.size)]
    assert [place.rank for place in places] == list(range(2 * stages))
    assert [len(place.layers(5)) for place in places if place.shard == 0] == layers
    assert [layer for place in places if place.shard == 1 for layer in place.layers(5)] == list(range(5))
    assert [place.is_first for place in places].count(True) == [place.is_last for place in places].count(True) == 2


@pytest.mark.parametrize(("vocab", "sizes"), [(100, [64, 36]), (65, [32, 33]), (33, [32, 1]), (20, [0, 20])])
def test_shards_hold_the_whole_vocabulary_and_begin_between_words(vocab: int, sizes: list[int]) -> None:
    layout = Layout(tensor_size=2)
    shards = [layout.place(rank).vocabulary(vocab) for rank in range(2)]
    assert [len(shard) for shard in shards] == sizes
    assert [token for shard in shards for token in shard] == list(range(vocab))
    assert all(shard.start % 32 == 0 for shard in shards if shard)
