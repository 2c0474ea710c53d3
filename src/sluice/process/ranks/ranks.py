"""The other ranks, as the leader's process sees them: it starts those of its machine, and waits for all.

spawn    a process for each rank of this machine (`rank_spawn`), or of another one there (`rank_node`)
meet     each connects, proves that it knows the token if it is on another machine, and says what it goes by
begin    if all go by the same, each joins the groups and loads its part
agree    on the most pages of the device and the host that all of them have room for
watch    from then on, the end of one ends this process, and with it the others
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sluice.assembly.devices import resolve_here
from sluice.assembly.load import find_checkpoint, refuse_parts
from sluice.assembly.rank_facts import difference, facts_of
from sluice.assembly.ranks import address_of, layout_of, ranks_of_node
from sluice.assembly.tiers import RankPages
from sluice.config import ConfigError, EngineConfig, ParallelConfig
from sluice.parallel.group import GroupError
from sluice.parallel.member import Member
from sluice.parallel.rendezvous import bind_nccl, listen_store, own_address
from sluice.parallel.torch_group import join_groups
from sluice.process.activity import activity_of
from sluice.process.log_limiter import LogLimiter
from sluice.process.ranks.frame_socket import FrameSocket, prove, watch_ends
from sluice.process.ranks.joining import failure, join_watched
from sluice.process.ranks.spawn import RankProcesses
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
from sluice.process.secret_file import TOKEN, read_or_make_secret
from sluice.process.wire import Start

LOGGER = logging.getLogger("sluice.engine")
LOCAL = "127.0.0.1"
EXIT_RANK_ENDED = 4
"""Exit status of a leader that another rank has left, if it did not find out by itself."""
PROVE_SECONDS = 10.0
"""Seconds that a connection has to prove that it knows the token."""
GROUP_SECONDS = 600.0
"""Seconds for one exchange between ranks: as long as a step may take."""
NOTICE_SECONDS = 2.0
"""Seconds that the loop has to report the end of a rank before the process ends."""
MAX_UNKNOWN = 64
"""Connections at a time that have not proved anything."""
LOG_SECONDS = 10.0
"""Seconds between two messages about connections that are no ranks."""

Tick = Callable[[], None]
F = TypeVar("F", bound=RankFrame)


class RankLinks:
    """The leader's end of the links to all other ranks: a `runner.parallel.control.LeaderLink`.

    Args:
        connections: by the rank.
        spawned: those that this process has started.
    """

    def __init__(self, connections: Mapping[int, FrameSocket], spawned: RankProcesses) -> None:
        self._connections = connections
        self._spawned = spawned  # they live as long as their standard input is open
        self._is_closed = False

    def broadcast(self, frame: bytes) -> None:
        for connection in self._connections.values():
            connection.send(frame)

    def receive(self, rank: int, timeout: float) -> bytes | None:
        return self._connections[rank].receive_within(timeout)

    def watch(self) -> None:
        """End this process soon after any other rank ends, whatever it does then."""
        watch_ends(list(self._connections.values()), self._ended)

    def close(self) -> None:
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()

    def _ended(self, connection: FrameSocket) -> None:
        time.sleep(NOTICE_SECONDS)
        if not self._is_closed:
            LOGGER.error("%s has ended, and the others end with it", connection.name)
            os._exit(EXIT_RANK_ENDED)


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks of an engine, as seen by the leader, before it loads the model."""

    member: Member
    """The leader's place and groups."""
    links: RankLinks
    wait_tick: Tick | None
    """Called about every second while a step waits for another rank's answer; None: nothing is."""
    _connections: Mapping[int, FrameSocket]
    _tick: Tick

    def agree(self, pages: RankPages) -> RankPages:
        """Return how many pages every rank has room for.

        Args:
            pages: for which this one has.

        Raises:
            ConfigError: another rank cannot start; a `MemoryShortage` if it lacks memory.
            GroupError: another rank has ended.
        """
        for connection in self._connections.values():
            pages = pages.common(_next(connection, Pages, self._tick).pages)
        self.links.broadcast(encode_frame(Pages(pages)))
        return pages

    def wait_until_loaded(self) -> None:
        """Wait until every rank awaits steps, and end this process from then on if one of them ends.

        Raises:
            ConfigError, GroupError: as `agree`.
        """
        for connection in self._connections.values():
            _next(connection, RankLoaded, self._tick)
        self.links.watch()


def meet_ranks(start: Start, spawned: RankProcesses, listening: Path, tick: Tick, wait_tick: Tick) -> Ranks:
    """Wait until the ranks of all machines have joined.

    Args:
        spawned: those that this process has started.
        listening: where they connect.
        tick: called at least every second while this waits.
        wait_tick: called about every second while a step waits for ranks whose work this machine does not show.

    Raises:
        ConfigError: an option that cannot be honoured; ranks that go by other versions, options or checkpoints.
        CheckpointError: the model cannot be cut so.
        OSError: a socket cannot be made; a rank has not connected in time.
        GroupError: a rank has ended while it joined.
    """
    config = start.config
    parallel = config.parallel
    if parallel.node_rank > 0:
        raise ConfigError(
            f"--node-rank {parallel.node_rank} needs `sluice serve`: only the first machine has the engine"
        )
    _, device = resolve_here(config)
    checkpoint = find_checkpoint(config.model)
    refuse_parts(config, checkpoint)
    facts = facts_of(config, checkpoint.folder)
    host, port = (LOCAL, 0) if parallel.dist_init_addr is None else address_of(parallel.dist_init_addr)
    token = b""
    if parallel.dist_token_file is not None:
        token = read_or_make_secret(Path(parallel.dist_token_file), TOKEN)
    with ExitStack() as undo:
        listeners = [undo.enter_context(_listen_on_path(listening))]
        if spawned.entrance is not None:
            host, token = spawned.entrance.host, spawned.entrance.token
            listeners.append(undo.enter_context(spawned.entrance.listener))
        elif parallel.nnodes > 1:
            listeners.append(undo.enter_context(_listen_on_address(host, port)))
        meeting = _Meeting(layout_of(parallel).size, listeners, token, spawned, tick)
        met = meeting.run(start.start_seconds, f"{host}:{port}", config)
        connections = {rank: met[rank][0] for rank in sorted(met)}
        for rank, (connection, hello) in sorted(met.items()):
            if (problem := difference(f"rank {rank}", hello.facts, facts)) is not None:
                connection.send(encode_frame(RankFailed(problem)))
                connection.close()
                raise ConfigError(problem)
    store = listen_store(host, GROUP_SECONDS)
    begin = Begin(config, host, store.port)
    links = RankLinks(connections, spawned)
    links.broadcast(encode_frame(begin))
    if device.type == "cuda":
        bind_nccl(own_address(host))
    place = layout_of(parallel).place(0)
    ticks = None if _shows_all_work(parallel) else wait_tick
    member = join_watched(
        lambda: join_groups(place, store, host, GROUP_SECONDS, device, ticks), connections.values(), tick
    )
    shows_in_waits = ticks is None and device.type == "cpu"  # a device's work shows on no processor
    return Ranks(member, links, None if shows_in_waits else wait_tick, connections, tick)


def _shows_all_work(parallel: ParallelConfig) -> bool:
    """Return whether all ranks are this process's descendants, and the server sees what these compute."""
    are_descendants = parallel.nnodes == 1 and parallel.distributed_executor_backend != "ray"
    return are_descendants and activity_of(os.getpid()) is not None


def _listen_on_path(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def _listen_on_address(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"--dist-init-addr {host}:{port} must be an address of the first machine (--node-rank 0) with a free port:"
            f" {error.strerror or error}"
        ) from error


class _Meeting:
    """Waits until all other ranks have connected and said hello.

    Args:
        size: ranks, the leader included.
        listeners: where they connect. Those of TCP ask for the token.
        spawned: those that this process has started.
    """

    def __init__(
        self,
        size: int,
        listeners: Sequence[socket.socket],
        token: bytes,
        spawned: RankProcesses,
        tick: Tick,
    ) -> None:
        self._expected = set(range(1, size))
        self._listeners = listeners
        self._token = token
        self._spawned = spawned
        self._tick = tick
        self._met: queue.SimpleQueue[tuple[FrameSocket, Hello]] = queue.SimpleQueue()
        self._unknown = threading.BoundedSemaphore(MAX_UNKNOWN)
        self._strangers = LogLimiter(LOG_SECONDS)

    def run(self, seconds: float, address: str, config: EngineConfig) -> dict[int, tuple[FrameSocket, Hello]]:
        """Return each rank's connection, and what it said.

        Raises:
            OSError: some have not come within `seconds`, or a process of this machine has ended.
        """
        found: dict[int, tuple[FrameSocket, Hello]] = {}
        poller, until = select.poll(), time.monotonic() + seconds
        by_file = {listener.fileno(): listener for listener in self._listeners}
        for file in by_file:
            poller.register(file, select.POLLIN)
        while missing := self._expected - found.keys():
            self._tick()
            self._check_processes()
            if time.monotonic() > until:
                raise TimeoutError(_missing(missing, address, seconds, config))
            for file, _ in poller.poll(100):
                self._accept(by_file[file])
            with suppress(queue.Empty):
                while True:
                    connection, hello = self._met.get_nowait()
                    if hello.rank in found or hello.rank not in self._expected:
                        problem = f"there is a rank {hello.rank} already, or none was expected"
                        connection.send(encode_frame(RankFailed(problem)))
                        connection.close()
                        continue
                    connection.name = f"rank {hello.rank}"
                    found[hello.rank] = connection, hello
        return found

    def _accept(self, listener: socket.socket) -> None:
        connected, peer = listener.accept()
        if not self._unknown.acquire(blocking=False):
            connected.close()
            return
        is_local = listener.family == socket.AF_UNIX
        name = "a rank of this machine" if is_local else f"the machine at {peer[0]}"
        threading.Thread(target=self._meet, args=(connected, name, is_local), name="meet-rank", daemon=True).start()

    def _meet(self, connected: socket.socket, name: str, is_local: bool) -> None:
        """Let one connection prove itself and say hello."""
        connection = FrameSocket(connected, name)
        try:
            if not is_local:
                prove(connection, self._token, leads=True, seconds=PROVE_SECONDS)
            data = connection.receive_within(PROVE_SECONDS)
            frame = None if data is None else decode_frame(data)
            if not isinstance(frame, Hello):
                raise GroupError(f"{name} did not say hello")
            self._met.put((connection, frame))
        except GroupError as error:
            self._strangers.warn(LOGGER, f"{error}, and is no rank")
            connection.close()
        finally:
            self._unknown.release()

    def _check_processes(self) -> None:
        if (status := self._spawned.ended()) is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise ChildProcessError(f"the process of a rank {how} before it had connected")


def _missing(missing: set[int], address: str, seconds: float, config: EngineConfig) -> str:
    parallel = config.parallel
    ranks = ", ".join(map(str, sorted(missing)))
    nodes = [node for node in range(1, parallel.nnodes) if missing & set(ranks_of_node(parallel, node))]
    if not nodes:
        return f"ranks {ranks} have not connected within {seconds:g} s"
    starts = " and ".join(f"--node-rank {node}" for node in nodes)
    return (
        f"ranks {ranks} have not connected to {address} within {seconds:g} s: start their machines with the same"
        f" options and {starts}, and let them reach that address"
    )


def _next(connection: FrameSocket, kind: type[F], tick: Tick) -> F:
    """Wait for a rank's next frame.

    Raises:
        ConfigError, MemoryShortage: it cannot start.
        GroupError: it has ended, or sent something else.
    """
    while (data := connection.receive_within(1.0)) is None:
        tick()
    frame = decode_frame(data)
    if isinstance(frame, RankFailed):
        raise failure(connection, frame)
    if not isinstance(frame, kind):
        raise GroupError(f"{connection.name} should have sent {kind.__name__}, but sent {frame!r}")
    return frame


def with_own_paths(config: EngineConfig, own: EngineConfig) -> EngineConfig:
    """Return the leader's options with a machine's own paths and devices."""
    model, machine = config.model, own.model
    return replace(
        config,
        model=replace(
            model,
            model=machine.model,
            tokenizer=machine.tokenizer,
            download_dir=machine.download_dir,
            device=machine.device,
            threads=machine.threads,
        ),
        parallel=own.parallel,
    )
