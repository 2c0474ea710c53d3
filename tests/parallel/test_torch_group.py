"""TorchGroup: torch.distributed as a group, listening where it is told to and nowhere else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from sluice.parallel.group import GroupError
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from sluice.parallel.rendezvous import bind_nccl, join_store, listen_store, own_address
from sluice.parallel.torch_group import MAX_SENDS, join_groups

CPU = torch.device("cpu")
LOCAL = "127.0.0.1"


def join(layout: Layout, store: TCPStore, timeout: float = 20, tick: Callable[[], None] | None = None) -> list[Member]:
    """Return the ranks of a new group, each with a connection of its own, as processes have."""

    def join_one(rank: int) -> Member:
        return join_groups(layout.place(rank), join_store(LOCAL, store.port, 20), LOCAL, timeout, CPU, tick)

    with ThreadPoolExecutor(layout.size) as threads:
        return list(threads.map(join_one, range(layout.size)))


def close(ranks: Iterable[Member]) -> None:
    for rank in ranks:
        rank.tensor_group.close()
        rank.pipeline_group.close()


def listening() -> dict[str, str]:
    """Return this process's listening sockets by their numbers, with their addresses as the kernel writes them."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {words[9]: words[1] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in own}


def test_shards_sum_and_stages_send() -> None:
    ranks = join(Layout(2, 2), listen_store(LOCAL, 20))

    def body(rank: Member) -> tuple[list[float], list[list[float]], float]:
        place = rank.place
        total = rank.tensor_group.all_reduce(torch.tensor([10.0**place.rank], dtype=torch.float64))
        gathered = rank.tensor_group.all_gather(torch.tensor([place.rank, 7.0]))
        x = torch.zeros(1)
        if place.is_first:
            for number in range(2 * MAX_SENDS):
                rank.pipeline_group.send(x.fill_(number + 100 * place.shard), 1)
            return total.tolist(), gathered.tolist(), 0.0
        received = [rank.pipeline_group.recv(x, 0).item() for _ in range(2 * MAX_SENDS)]
        assert received == [number + 100 * place.shard for number in range(2 * MAX_SENDS)]
        return total.tolist(), gathered.tolist(), received[-1]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(body, ranks))
    assert [total for total, _, _ in answers] == [[11.0], [11.0], [1100.0], [1100.0]]
    assert [gathered for _, gathered, _ in answers] == [[[0, 7], [1, 7]]] * 2 + [[[2, 7], [3, 7]]] * 2
    close(ranks)


def test_a_rank_ticks_while_it_waits() -> None:
    """A slower rank of another machine is no reason to end this one."""
    ticked = threading.Event()
    ranks = join(Layout(2, 2), listen_store(LOCAL, 20), tick=ticked.set)

    def ticks_until(call: Callable[[], object], then: Callable[[], object]) -> bool:
        ticked.clear()
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(call)
            found = ticked.wait(10)
            then()
            waiting.result()
        return found

    x, y = torch.ones(1), torch.ones(1)
    tensor, pipeline = [rank.tensor_group for rank in ranks], [rank.pipeline_group for rank in ranks]
    assert ticks_until(lambda: tensor[0].all_reduce(x), lambda: tensor[1].all_reduce(y))
    assert ticks_until(lambda: pipeline[2].recv(x, 0), lambda: pipeline[0].send(y + 1, 1))
    assert x.item() == 3
    close(ranks)


def test_a_rank_that_leaves_ends_the_calls_of_the_others() -> None:
    ranks = join(Layout(2, 2), listen_store(LOCAL, 20))
    ranks[1].tensor_group.close()
    with pytest.raises(GroupError, match="another rank has ended"):
        ranks[0].tensor_group.all_reduce(torch.zeros(1))
    close(ranks)


def test_a_rank_that_does_not_answer_ends_the_call() -> None:
    ranks = join(Layout(2), listen_store(LOCAL, 20), timeout=0.5)
    with pytest.raises(GroupError, match="not answered in time"):
        ranks[0].tensor_group.all_reduce(torch.zeros(1))
    close(ranks)


def test_nothing_listens_on_another_address() -> None:
    """Store and gloo ask no one who connects: on every interface they would be open to the network."""
    before = listening().keys()
    store = listen_store(LOCAL, 20)
    ranks = join(Layout(2), store)
    new = {address.partition(":")[0] for number, address in listening().items() if number not in before}
    assert new == {f"{int.from_bytes(socket.inet_aton(LOCAL), 'little'):08X}"}
    close(ranks)


def test_nccl_has_the_interface_of_the_address_or_does_not_start() -> None:
    with pytest.raises(ValueError, match="must be an IPv4 address: no interface of this machine has fd00::1"):
        bind_nccl("fd00::1")


def test_the_address_towards_a_machine_is_one_of_its_network() -> None:
    assert own_address(LOCAL) == LOCAL
