"""A rank that ends while others join is named at once, and what it said is what the user reads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sluice.config import ConfigError, MemoryShortage
from sluice.device.queues import noop
from sluice.parallel.group import GroupError
from sluice.process.ranks.frame_socket import FrameSocket
from sluice.process.ranks.joining import join_watched
from sluice.process.ranks.wire import RankFailed, RankLoaded, encode_frame

Ranks = tuple[list[FrameSocket], list[FrameSocket]]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """The leader's ends of two connections, and those of the ranks."""
    (one, first), (other, second) = socket.socketpair(), socket.socketpair()
    with (
        closing(FrameSocket(one, "rank 1")) as left,
        closing(FrameSocket(other, "rank 2")) as right,
        closing(FrameSocket(first, "the leader")) as end,
        closing(FrameSocket(second, "the leader")) as last,
    ):
        yield [left, right], [end, last]


@pytest.fixture
def never() -> Iterator[Callable[[], object]]:
    """Wait for a rank that does not join, until the test ends."""
    over = threading.Event()
    yield over.wait
    over.set()


def test_a_rank_that_ends_is_named_while_the_others_still_wait_for_it(
    ranks: Ranks, never: Callable[[], object]
) -> None:
    leaders, others = ranks
    with pytest.raises(GroupError, match="rank 2 has ended while it joined"):
        join_watched(never, leaders, others[1].close)


def test_a_rank_that_said_why_is_quoted(ranks: Ranks, never: Callable[[], object]) -> None:
    leaders, others = ranks
    others[0].close()
    others[1].send(encode_frame(RankFailed("no device", is_shortage=True)))
    others[1].close()
    with pytest.raises(MemoryShortage, match="rank 2: no device"):
        join_watched(never, leaders, noop)


def test_a_failure_to_join_is_that_of_the_rank_which_ended(ranks: Ranks) -> None:
    leaders, others = ranks

    def join() -> None:
        others[0].send(encode_frame(RankFailed("no device")))
        others[0].close()
        raise GroupError("another rank has ended")

    with pytest.raises(ConfigError, match="rank 1: no device"):
        join_watched(join, leaders, noop)


def test_what_ranks_say_that_have_joined_is_left_to_read(ranks: Ranks) -> None:
    leaders, others = ranks
    frame = encode_frame(RankLoaded())
    others[0].send(frame)
    assert join_watched(lambda: 7, leaders, noop) == 7
    assert leaders[0].receive() == frame
