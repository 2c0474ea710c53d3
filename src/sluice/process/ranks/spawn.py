"""Starts the processes of ranks, and tells each what it is. Loads no torch, so that ranks load it while others do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from sluice.assembly.ranks import ranks_of_node
from sluice.config import EngineConfig
from sluice.process.wire import Start
from sluice.types.framing import read_frame, write_frame

EXIT_REFUSED = 5
"""Exit status of a rank that the leader refuses, or that does not find it: another attempt would be no better."""


class RankSetup(msgspec.Struct, frozen=True):
    """To a new process, through its standard input."""

    rank: int
    local_rank: int
    """The rank's number among those of its machine, which chooses its device."""
    config: EngineConfig
    """Options as they were given on this machine."""
    leader: str
    """A path of a socket, or HOST:PORT on another machine."""
    seconds: float
    """Seconds to find the leader."""
    token: bytes = b""
    """Secret by which machines recognise each other."""
    log_level: str = "warning"
    log_format: str = "text"


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where ranks of other machines connect."""

    listener: socket.socket
    host: str
    token: bytes

    @property
    def address(self) -> str:
        """HOST:PORT."""
        port: int = self.listener.getsockname()[1]
        return f"{self.host}:{port}"


class RankProcesses(Protocol):
    """The processes of ranks that this one has started. They end with this process, or at `close`."""

    entrance: Entrance | None
    """Where those connect that are on other machines; None: the options say so, or there are none."""

    def ended(self) -> int | None:
        """Return the exit status of a process that has ended; None: all run."""

    def close(self) -> None:
        """End all processes."""


class Spawned:
    """The processes of ranks on this machine. They live until the end of this process, or until `close`."""

    entrance: Entrance | None = None

    def __init__(self, processes: tuple[subprocess.Popen[bytes], ...]) -> None:
        self._processes = processes

    @classmethod
    def beside_leader(cls, start: Start, leader: Path) -> Spawned:
        """Start the other ranks of the leader's machine.

        Args:
            leader: where the leader is going to listen.

        Raises:
            OSError: a process cannot be started.
        """
        return cls.of_node(start, 0, str(leader), b"")

    @classmethod
    def of_node(cls, start: Start, node: int, leader: str, token: bytes) -> Spawned:
        """Start the ranks of a machine, but not the leader.

        Args:
            leader: its address.

        Raises:
            OSError: a process cannot be started.
        """
        return cls(
            tuple(
                spawn_rank(
                    RankSetup(
                        rank,
                        local_rank,
                        start.config,
                        leader,
                        start.start_seconds,
                        token,
                        start.log_level,
                        start.log_format,
                    )
                )
                for local_rank, rank in enumerate(ranks_of_node(start.config.parallel, node))
                if rank > 0
            )
        )

    def ended(self) -> int | None:
        """Return the exit status of a process that has ended; None: all run."""
        return next((status for process in self._processes if (status := process.poll()) is not None), None)

    def close(self) -> None:
        """End all processes, and wait for them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def read_setup(file: int) -> RankSetup:
    """Read what a process is sent on its standard input, and nothing behind it.

    Raises:
        EOFError: the process that started this one has ended.
    """

    def read(count: int) -> bytes:
        data = b""
        while len(data) < count and (more := os.read(file, count - len(data))):
            data += more
        return data

    if (frame := read_frame(read)) is None:
        raise EOFError
    setup: RankSetup = msgspec.msgpack.decode(frame, type=RankSetup)
    return setup


def spawn_rank(setup: RankSetup, folder: str | None = None) -> subprocess.Popen[bytes]:
    """Start the process of one rank.

    Args:
        folder: where it runs; None: where this process does.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        # -P: modules never come from the working directory, which may be a checkpoint.
        (sys.executable, "-P", "-m", "sluice.process.ranks.process"),
        stdin=subprocess.PIPE,  # its end shows the rank that this process has ended
        stdout=sys.stderr.fileno(),
        cwd=folder,
        start_new_session=True,  # Ctrl-C in a terminal reaches only the server
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, which is noticed later
        write_frame(process.stdin.write, msgspec.msgpack.encode(setup))
        process.stdin.flush()
    return process
