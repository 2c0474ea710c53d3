"""The engine's process: `python -m sluice.process.engine_process FOLDER`, started by `process.launch`.

It waits for a `Start` in the socket folder, builds the engine with the factory named there, answers `Ready` (or
`Failed` with one line for the user) and runs the loop until `Shutdown`. It never outlives the server: standard input
is a pipe whose end means that the server is gone, however it went.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Phase
from sluice.engine.watched import WatchedRunner
from sluice.faults import Fault, FaultKind, of_engine, parse_faults
from sluice.http.logs import show_log
from sluice.process.exit_on_error import ExitOnErrorRunner, StepFailed
from sluice.process.faulty import FaultyRunner, LossyLink
from sluice.process.freeze_gc import freeze_gc
from sluice.process.wire import Failed, Ready, Start
from sluice.process.zmq_link import SocketFolder, ZmqLink

EXIT_FAILED = 3
"""The reason was sent as `Failed`."""
PR_SET_PDEATHSIG = 1

Factory = Callable[[Start, ZmqLink], tuple[Engine, Ready]]


def main(arguments: list[str]) -> int:
    """Run one engine. Returns the exit status."""
    (folder,) = arguments
    _die_with_server()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when to end
    link = ZmqLink(SocketFolder(Path(folder)))
    try:
        start = link.receive_start()
        show_log(start.log_level, start.log_format)
        try:
            engine, ready = find_factory(start.factory)(start, link)
        except Exception as error:
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()  # not the user's doing
            link.send_frame(Failed(describe(error)))
            return EXIT_FAILED
        freeze_gc()
        link.heartbeat.tick(Phase.BUSY)  # from here on it is watched
        link.send_frame(ready)
        _prepare(engine, link, of_engine(parse_faults(start.faults), start.epoch))
        with closing(engine):
            return _run(engine, link)
    finally:
        link.close()


def _prepare(engine: Engine, link: ZmqLink, faults: Sequence[Fault]) -> None:
    """Have it watched, and have it fail where it is told."""
    if faults:
        engine.runner = FaultyRunner(engine.runner, faults, link.heartbeat)
        lost = [fault.number for fault in faults if fault.kind is FaultKind.DROP and fault.number is not None]
        engine.link = LossyLink(link, lost, sent=1)
    engine.runner = ExitOnErrorRunner(WatchedRunner(engine.runner, link.heartbeat))


def _run(engine: Engine, link: ZmqLink) -> int:
    try:
        engine.run()
    except (StepFailed, Exception) as error:
        traceback.print_exc()
        cause = error.__cause__ if isinstance(error, StepFailed) else error
        link.send_frame(Failed(describe(cause or error)))
        return EXIT_FAILED
    return 0


def find_factory(name: str) -> Factory:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


def build(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """The factory that serves: a checkpoint on torch."""
    from sluice.assembly.build import build_engine

    faults = of_engine(parse_faults(start.faults), start.epoch)
    # A bar is for people who watch, not for a file of log lines.
    engine, info = build_engine(
        start.config,
        link,
        progress=sys.stderr.isatty(),
        heartbeat=link.heartbeat,
        faults=faults,
        follows=start.epoch > 0,
    )
    return engine, Ready(
        model=info.model,
        folder=str(info.folder),
        limits=info.limits,
        eos_token_ids=tuple(sorted(info.eos_token_ids)),
        is_bundled=info.is_bundled,
        config=info.config,
        reasons=info.reasons,
        memory=info.memory,
    )


def describe(error: BaseException) -> str:
    """An error in one line; errors that are meant for users speak for themselves."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}"


def _die_with_server() -> None:
    """End at once when the server does, even in the middle of a long step."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_stdin, name="watch-server", daemon=True).start()


def _watch_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
