"""Frames between ranks: in order, of any size, from an end that knows the token."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from sluice.parallel.group import GroupError
from sluice.process.ranks.frame_socket import FrameSocket, prove, watch_ends
from sluice.types.framing import LENGTH

Pair = tuple[FrameSocket, FrameSocket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with closing(FrameSocket(one, "rank 1")) as left, closing(FrameSocket(other, "the leader")) as right:
        yield left, right


def test_frames_of_any_size_arrive_in_order_without_a_reader(ends: Pair) -> None:
    """A leader that waits until a rank reads, while that rank waits until the leader reads, would wait for ever."""
    frames = [b"", b"x", bytes(5 << 20), b"last"]
    for frame in frames:
        ends[0].send(frame)
        ends[1].send(frame)
    assert [ends[1].receive() for _ in frames] == [ends[0].receive() for _ in frames] == frames
    assert ends[0].receive_within(0.01) is None


def test_what_was_sent_before_the_end_is_received_first(ends: Pair) -> None:
    ends[0].send(b"why")
    ends[0].close()
    assert ends[1].receive_within(5) == b"why"
    with pytest.raises(GroupError, match="the leader has ended"):
        ends[1].receive()


def test_the_end_of_the_other_side_is_noticed_without_reading(ends: Pair) -> None:
    noticed: list[FrameSocket] = []
    done = threading.Event()

    def ended(connection: FrameSocket) -> None:
        noticed.append(connection)
        done.set()

    watch_ends([ends[0]], ended)
    ends[1].send(b"an answer is no end")
    ends[1].close()
    assert done.wait(10)
    assert noticed == [ends[0]]
    assert ends[0].receive() == b"an answer is no end"


def meet(ends: Pair, leaders: bytes, ranks: bytes) -> list[str]:
    """Return what each end found wrong."""

    def run(connection: FrameSocket, token: bytes, leads: bool) -> str:
        try:
            prove(connection, token, leads=leads, seconds=10)
        except GroupError as error:
            connection.close()
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, ends, (leaders, ranks), (True, False)))


def test_the_token_is_proved_by_both(ends: Pair) -> None:
    assert meet(ends, b"secret", b"secret") == ["", ""]
    ends[0].send(bytes(1000))
    assert ends[1].receive() == bytes(1000)


def test_another_token_is_refused(ends: Pair) -> None:
    assert meet(ends, b"secret", b"guess") == ["rank 1 does not know the token", "the leader does not know the token"]


def test_a_machine_that_has_gone_is_noticed_while_data_is_sent_to_it() -> None:
    """The system probes only connections on which nothing waits for an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connected = socket.create_connection(listener.getsockname())
        with closing(FrameSocket(connected, "rank 1")):
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000


def test_an_unknown_end_cannot_fill_the_memory() -> None:
    one, other = socket.socketpair()
    with closing(FrameSocket(one, "rank 1")) as end, other:
        other.sendall(LENGTH.pack(1 << 20))
        with pytest.raises(GroupError, match="sent a frame of 1048576 bytes, 64 are accepted"):
            prove(end, b"secret", leads=True, seconds=10)


def test_an_end_that_is_silent_is_refused_in_time(ends: Pair) -> None:
    with pytest.raises(GroupError, match="does not answer"):
        prove(ends[0], b"secret", leads=True, seconds=0.01)
