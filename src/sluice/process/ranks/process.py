"""The process of a rank beside the leader: `python -m sluice.process.ranks.process`, started by `spawn`.

It reads a `RankSetup` from its standard input, connects to the leader, loads its part of the model, and runs the steps
that the leader sends until the leader closes the link. The end of its standard input means that the process which
started it has ended, and ends it at once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing

import torch

from sluice.assembly.devices import resolve_here
from sluice.assembly.load import find_checkpoint
from sluice.assembly.rank_facts import facts_of
from sluice.assembly.rank_runners import build_follower
from sluice.assembly.ranks import address_of, layout_of
from sluice.assembly.tiers import RankPages
from sluice.parallel.group import GroupError
from sluice.parallel.rendezvous import bind_nccl, join_store, own_address
from sluice.parallel.torch_group import join_groups
from sluice.process.engine_process import EXIT_FAILED, describe, die_with_parent, end_with_stdin, freeze_gc, is_shortage
from sluice.process.logs import configure_logging
from sluice.process.priority import be_nice
from sluice.process.ranks.frame_socket import FrameSocket, WrongToken, prove, watch_ends
from sluice.process.ranks.ranks import GROUP_SECONDS, NOTICE_SECONDS, PROVE_SECONDS, with_own_paths
from sluice.process.ranks.spawn import EXIT_REFUSED, RankSetup, read_setup
from sluice.process.ranks.wire import (
    Begin,
    Hello,
    Pages,
    RankFailed,
    RankFrame,
    RankLoaded,
    decode_frame,
    encode_frame,
)

RETRY_SECONDS = 0.2
"""Seconds between two attempts to connect."""
LEADER = "the first machine"


class RankRefused(Exception):
    """The leader does not take this rank."""


def main() -> int:
    """Run one rank. Returns the exit status."""
    die_with_parent()
    setup = read_setup(sys.stdin.fileno())
    end_with_stdin()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when to end
    configure_logging(setup.log_level, setup.log_format)
    try:
        connection = connect(setup.leader, setup.token, setup.seconds)
    except (GroupError, OSError) as error:
        print(f"sluice: error: rank {setup.rank}: {error}", file=sys.stderr)
        is_final = isinstance(error, WrongToken | OSError)  # else the leader ended just then, or was too busy
        return EXIT_REFUSED if is_final else EXIT_FAILED
    watch_ends([connection], _leader_ended)
    with closing(connection):
        try:
            _run(setup, connection)
        except RankRefused as error:
            print(f"sluice: error: rank {setup.rank}: {error}", file=sys.stderr)
            return EXIT_REFUSED
        except GroupError:  # another rank has failed, and its own error says why
            return EXIT_FAILED
    return 0


def _run(setup: RankSetup, connection: FrameSocket) -> None:
    """Load this rank's part of the model, and run the leader's steps.

    Raises:
        Refused: by the leader.
        GroupError: the leader, or another rank, has ended.
    """
    try:
        follow, device = _load(setup, connection)
    except (GroupError, RankRefused):
        raise
    except Exception as error:
        if not isinstance(error, ValueError | OSError):
            traceback.print_exc()  # a bug, not a wrong option
        connection.send(encode_frame(RankFailed(describe(error), is_shortage(error))))
        raise GroupError(describe(error)) from error
    freeze_gc()
    if device == "cpu":
        be_nice()
    follow()


def _load(setup: RankSetup, connection: FrameSocket) -> tuple[Callable[[], None], str]:
    """Return what runs the leader's steps, and the type of its device."""
    facts = facts_of(setup.config, find_checkpoint(setup.config.model).folder)
    connection.send(encode_frame(Hello(setup.rank, facts)))
    begin = _next(connection)
    if not isinstance(begin, Begin):
        raise GroupError(f"the leader should have let this rank begin, but said {begin!r}")
    config = with_own_paths(begin.config, setup.config)
    _, device = resolve_here(config, setup.local_rank)
    address = own_address(begin.store_host)
    if device.type == "cuda":
        bind_nccl(address)
        torch.cuda.set_device(device)  # where no device is named, as when a kernel is launched
    store = join_store(begin.store_host, begin.store_port, GROUP_SECONDS)
    place = layout_of(config.parallel).place(setup.rank)
    member = join_groups(place, store, address, GROUP_SECONDS, device)

    def agree(pages: RankPages) -> RankPages:
        connection.send(encode_frame(Pages(pages)))
        agreed = _next(connection)
        if not isinstance(agreed, Pages):
            raise GroupError(f"the leader should have said how many pages there are, but said {agreed!r}")
        return agreed.pages

    loaded = build_follower(config, member, connection, agree, setup.local_rank)
    connection.send(encode_frame(RankLoaded()))
    return loaded


def _next(connection: FrameSocket) -> RankFrame:
    frame = decode_frame(connection.receive())
    if isinstance(frame, RankFailed):
        raise RankRefused(frame.message)
    return frame


def connect(leader: str, token: bytes, seconds: float) -> FrameSocket:
    """Connect to the leader; try again until it listens.

    Args:
        leader: a path, or HOST:PORT.
        token: empty for a path, where the folder keeps others out.
        seconds: to try for.

    Raises:
        OSError: it did not listen in time.
        WrongToken: its token is another one.
        GroupError: it has ended, or does not answer.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            connected = _connected(leader, until - time.monotonic())
            break
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS > until:
                reason = error.strerror or str(error)
                raise TimeoutError(f"{leader} has not answered within {seconds:g} s: {reason}") from error
            time.sleep(RETRY_SECONDS)
    connection = FrameSocket(connected, "the leader")
    if token:
        try:
            prove(connection, token, leads=False, seconds=PROVE_SECONDS)
        except GroupError as error:
            connection.close()
            if isinstance(error, WrongToken):
                message = f"{leader}: {error}; --dist-token-file must be the same on every machine"
                raise WrongToken(message) from error
            raise GroupError(f"{leader}: {error}") from error
    return connection


def _connected(leader: str, seconds: float) -> socket.socket:
    if not leader.startswith("/"):
        connected = socket.create_connection(address_of(leader), timeout=max(RETRY_SECONDS, seconds))
        connected.settimeout(None)
        return connected
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.connect(leader)
    except OSError:
        connected.close()
        raise
    return connected


def _leader_ended(connection: FrameSocket) -> None:
    """End this process soon after the leader, even in the middle of a step that waits for another rank."""
    time.sleep(NOTICE_SECONDS)
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())
