"""The leader while it joins the groups of ranks: a call of torch that notices the end of a rank after a minute."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

from sluice.config import ConfigError, MemoryShortage
from sluice.parallel.group import GroupError
from sluice.process.ranks.frame_socket import FrameSocket
from sluice.process.ranks.wire import RankFailed, decode_frame

T = TypeVar("T")
LOOK_SECONDS = 0.1
"""Seconds between two looks at the other ranks."""
NAME_SECONDS = 1.0
"""Seconds that the end of a rank has to show, once joining has failed."""


def join_watched(join: Callable[[], T], connections: Collection[FrameSocket], tick: Callable[[], None]) -> T:
    """Return what `join` returns, unless another rank ends first. Reads nothing from those that have not.

    Args:
        join: runs in a thread of its own, which is left behind if another rank ends.
        connections: to the other ranks.
        tick: called while this waits.

    Raises:
        ConfigError: another rank cannot start; a `MemoryShortage` if it lacks memory.
        GroupError: another rank has ended, or not joined in time.
    """
    joined: Future[T] = Future()

    def run() -> None:
        try:
            joined.set_result(join())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            joined.set_exception(error)

    threading.Thread(target=run, name="join-groups", daemon=True).start()
    while not wait((joined,), LOOK_SECONDS).done:
        tick()
        _refuse_ended(connections, 0)
    if isinstance(joined.exception(), GroupError):
        _refuse_ended(connections, NAME_SECONDS)
    return joined.result()


def failure(connection: FrameSocket, frame: RankFailed) -> ConfigError:
    """Return the error of a rank that cannot start."""
    kind = MemoryShortage if frame.is_shortage else ConfigError
    return kind(f"{connection.name}: {frame.message}")


def _refuse_ended(connections: Collection[FrameSocket], seconds: float) -> None:
    """Raise the error of a rank that has ended, or ends within some seconds: the one that says why, if one does."""
    poller = select.poll()
    by_file = {connection.fileno(): connection for connection in connections}
    for file in by_file:
        poller.register(file, select.POLLRDHUP)
    ended = [by_file[file] for file, _ in poller.poll(seconds * 1000)]
    for connection in ended:
        with suppress(GroupError):  # it has ended without a word
            while (data := connection.receive_within(0)) is not None:
                if isinstance(frame := decode_frame(data), RankFailed):
                    raise failure(connection, frame)
    if ended:
        raise GroupError(f"{ended[0].name} has ended while it joined")
