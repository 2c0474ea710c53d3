"""The ranks of another machine than the leader's: starts them, and others when these end, for every engine that leads.

`sluice serve --node-rank N` does this instead of serving. It ends when it is told to, when the leader refuses a rank,
or when it does not find the leader for `--start-timeout` seconds.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path

from sluice.assembly.ranks import ranks_of_node
from sluice.config import ConfigError
from sluice.process.ranks.spawn import EXIT_REFUSED, Spawned
from sluice.process.restarts import Backoff
from sluice.process.secret_file import TOKEN, read_or_make_secret
from sluice.process.wire import Start

LOGGER = logging.getLogger("sluice.server")
LOOK_SECONDS = 0.2
"""Seconds between two looks at the processes."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0
"""Seconds between ranks that end and those that follow them."""
STEADY_SECONDS = 10.0
"""Ranks that ran for so long do not count as some that soon end."""


def run_node(start: Start) -> int:
    """Run the ranks of this machine until a signal comes. Returns the exit status.

    Raises:
        ConfigError: the token cannot be read.
    """
    parallel = start.config.parallel
    assert parallel.dist_init_addr is not None and parallel.dist_token_file is not None, f"not checked: {parallel}"
    path = Path(parallel.dist_token_file)
    if not path.exists():
        raise ConfigError(f"{TOKEN}, {path}, is not there: copy it from the first machine")
    token = read_or_make_secret(path, TOKEN)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ranks = ranks_of_node(parallel, parallel.node_rank)
    print(f"Sluice computes ranks {ranks[0]} to {ranks[-1]} of the engine at {parallel.dist_init_addr}.", flush=True)
    pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        began = time.monotonic()
        try:
            spawned = Spawned.of_node(start, parallel.node_rank, parallel.dist_init_addr, token)
        except OSError as error:
            LOGGER.error("the ranks of this machine cannot be started: %s", error)
            return 1
        try:
            status = _wait(spawned, stop)
        finally:
            spawned.close()
        if stop.is_set():
            return 0
        if status == EXIT_REFUSED:
            return 1
        LOGGER.warning("the ranks of this machine have ended with their engine; others are started")
        if time.monotonic() - began >= STEADY_SECONDS:
            pauses.reset()
        if stop.wait(pauses.next()):
            return 0


def _wait(spawned: Spawned, stop: threading.Event) -> int | None:
    """Wait until a process ends, and return its status; None: a signal came first."""
    while (status := spawned.ended()) is None and not stop.wait(LOOK_SECONDS):
        pass
    return status
