"""The engine's process: `python -m sluice.server.engine_process FOLDER`, started by `server.launch`.

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
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.server.logs import show_log
from sluice.server.zmq_link import SocketFolder, ZmqLink
from sluice.wire import Failed, Ready

EXIT_FAILED_START = 3
"""The reason was sent as `Failed`."""
PR_SET_PDEATHSIG = 1

Factory = Callable[[EngineConfig, ZmqLink], tuple[Engine, Ready]]


def main(arguments: list[str]) -> int:
    """Run one engine. Returns the exit status."""
    (folder,) = arguments
    _die_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    link = ZmqLink(SocketFolder(Path(folder)))
    try:
        start = link.receive_start()
        show_log(start.log_level, start.log_format)
        try:
            engine, ready = find_factory(start.factory)(start.config, link)
        except Exception as error:
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()  # not the user's doing
            link.send_frame(Failed(describe(error)))
            return EXIT_FAILED_START
        link.send_frame(ready)
        with closing(engine):
            engine.run()
        return 0
    finally:
        link.close()


def find_factory(name: str) -> Factory:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


def build(config: EngineConfig, link: ZmqLink) -> tuple[Engine, Ready]:
    """The factory that serves: a checkpoint on torch."""
    from sluice.assemble import build_engine

    engine, info = build_engine(config, link, progress=True)
    return engine, Ready(
        model=info.model,
        folder=str(info.folder),
        limits=info.limits,
        eos_token_ids=tuple(sorted(info.eos_token_ids)),
        is_bundled=info.is_bundled,
        config=info.config,
        reasons=info.reasons,
    )


def describe(error: Exception) -> str:
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
