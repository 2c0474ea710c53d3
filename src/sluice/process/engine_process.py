"""The engine's process: `python -m sluice.process.engine_process FOLDER`, started by `process.launch` or, before the
folder is known, by `process.early`.

It waits for a `Start` in the socket folder, builds the engine with the factory named there, answers `Ready` (or
`Failed` with one line for the user) and runs the loop until `Shutdown`. A step that raises ends the process: its device
may be in a bad state, and the request to blame is unknown. The server then continues every request in a new engine.

The process never outlives the server: its standard input is a pipe, and the end of that pipe means that the server has
ended.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from sluice.assembly.peers import Peers
from sluice.assembly.ranks import layout_of
from sluice.config import MemoryShortage, let_threads_sleep
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Heartbeat, LoadingPart, Phase, WatchedRunner
from sluice.engine.protocols import Pending, Runner
from sluice.engine.step_watch import StepWatch
from sluice.process.early import EARLY
from sluice.process.kv_events.board import KvEventSender
from sluice.process.lean_torch import without_python_kernels
from sluice.process.logs import configure_logging
from sluice.process.priority import be_nice
from sluice.process.ranks.ray_ranks import place_ranks
from sluice.process.ranks.spawn import RankProcesses, Spawned
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import Failed, Ready, Start
from sluice.process.zmq_link import ZmqLink
from sluice.types import BatchPlan, BatchResult
from sluice.types.faults import Fault, FaultKind, of_engine, parse_faults

EXIT_FAILED = 3
"""Exit status after the reason was sent as `Failed`."""
PR_SET_PDEATHSIG = 1
COLLECTIONS = (2_000, 3, 3_000)
"""When the garbage collector looks: at the youngest objects after so many new ones, each third time also at those that
it saw once, 6 ms at most, and each 3,000th time of these at all. With thousands of calls that takes 0.1 s."""
SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC}

Factory = Callable[[Start, ZmqLink], tuple[Engine, Ready]]

TICK_SECONDS = 1.0
"""Time between two ticks of a slow step."""


def main(arguments: list[str]) -> int:
    """Run one engine. Returns the exit status."""
    (folder,) = arguments
    die_with_parent()
    let_threads_sleep()
    lines = end_with_stdin()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when to end
    if folder == EARLY:
        with importing(), without_python_kernels():
            importlib.import_module("sluice.assembly.engine")
        folder = lines.get()
    link = ZmqLink(SocketFolder(Path(folder)))
    try:
        start = link.receive_start()
        configure_logging(start.log_level, start.log_format)
        try:
            engine, ready = find_factory(start.factory)(start, link)
        except Exception as error:  # noqa: BLE001 - reported to the parent
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()  # a bug, not a wrong option
            link.send_frame(Failed(describe(error), is_shortage(error)))
            return EXIT_FAILED
        freeze_gc()
        if ready.config.model.device == "cpu":
            be_nice()
        link.heartbeat.tick(Phase.BUSY)  # the server watches the heartbeat from here on
        link.send_frame(ready)
        _wrap_runner(engine, link, start)
        engine.watch = StepWatch(link.send_frame)
        engine.exit_on_error = True
        # It blocks the process for most of a second if the vocabulary is large. All requests would wait for that if it
        # were done before the engine is ready, and so only those that come meanwhile do.
        threading.Thread(target=engine.grammars.prepare, name="prepare-grammars", daemon=True).start()
        with closing(engine):
            return _run(engine, link)
    finally:
        link.close()


def _wrap_runner(engine: Engine, link: ZmqLink, start: Start) -> None:
    """Inject faults and write the heartbeat."""
    if faults := of_engine(parse_faults(start.faults), start.epoch):
        engine.runner = FaultInjector(engine.runner, faults, link.heartbeat)
    engine.runner = WatchedRunner(engine.runner, link.heartbeat)


def _run(engine: Engine, link: ZmqLink) -> int:
    try:
        engine.run()
    except Exception as error:  # noqa: BLE001 - reported to the parent
        traceback.print_exc()
        link.send_frame(Failed(describe(error)))
        return EXIT_FAILED
    return 0


def find_factory(name: str) -> Factory:
    """Import the function that "module:function" names."""
    module, _, function = name.partition(":")
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


def build(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build the engine of a checkpoint, on torch: the factory that `sluice serve` uses."""
    ranks = None
    if layout_of(start.config.parallel).size > 1:
        waited = itertools.count()

        def tick() -> None:
            link.heartbeat.loading(LoadingPart.FILES, next(waited))

        spawned = _start_ranks(start, link, tick)  # first, as each takes seconds to load torch
        with importing():
            from sluice.process.ranks.ranks import meet_ranks

        ranks = meet_ranks(start, spawned, link.folder.ranks, tick, partial(link.heartbeat.tick, Phase.DEVICE))
    with importing(), without_python_kernels():
        from sluice.assembly.engine import build_engine
        from sluice.assembly.rank_facts import OtherWeights, sampled_fingerprint

    events = KvEventSender(link.send_frame) if start.reports_kv_events else None
    engine, info = build_engine(
        start.config,
        link,
        progress=False,  # the server shows it
        heartbeat=link.heartbeat,
        faults=of_engine(parse_faults(start.faults), start.epoch),
        follows=start.epoch > 0,
        ranks=ranks,
        peers=Peers(
            events,
            link.send_frame,
            Path(start.remote) if start.remote else None,
        ),
        adapters=start.adapters,
    )
    if events is not None:
        events.name_of = engine.adapters.name_of
    fingerprint = sampled_fingerprint(info.folder)
    if start.fingerprint not in ("", fingerprint):
        engine.close()
        raise OtherWeights(info.model)
    return engine, Ready(
        model=info.model,
        tokenizer_folder=str(info.tokenizer_folder),
        limits=info.limits,
        eos_token_ids=tuple(sorted(info.eos_token_ids)),
        is_default=info.is_default,
        config=info.config,
        reasons=info.reasons,
        sampling_defaults=info.sampling_defaults,
        memory=info.memory,
        architecture=info.architecture,
        stored=info.stored,
        disabled_tiers=info.disabled_tiers,
        fingerprint=fingerprint,
        adapters=info.adapters,
        lost_adapters=info.lost_adapters,
    )


def _start_ranks(start: Start, link: ZmqLink, tick: Callable[[], None]) -> RankProcesses:
    if start.config.parallel.distributed_executor_backend == "ray":
        return place_ranks(start, link.folder.ranks, tick)
    return Spawned.beside_leader(start, link.folder.ranks)


def describe(error: BaseException) -> str:
    """Return an error in one line, without its type if it is an error whose message is meant for users."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}"


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that the machine lacks something at the moment."""
    if error is None:
        return False
    lacks = isinstance(error, MemoryError | MemoryShortage) or (isinstance(error, OSError) and error.errno in SHORTAGES)
    return lacks or is_shortage(error.__cause__)


@contextmanager
def importing() -> Iterator[None]:
    """Do not collect garbage while modules are imported. All that they make stays, and to look for garbage among the
    objects of torch takes 0.3 s of an engine's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_gc() -> None:
    """Exempt all present objects from garbage collection. Call it in a process of our own, once all is loaded.

    A full collection visits every object, those of torch's modules too: hundreds of milliseconds without a token.
    Collections become rarer as well: those of a server with a million log-probabilities on their way to slow clients
    take 0.15 s, and none of them is garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, even in the middle of a long step."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_stdin() -> SimpleQueue[str]:
    """Let this process end with its standard input, whose other end its parent holds. Return the lines that it gets."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_watch_stdin, args=(lines,), name="watch-parent", daemon=True).start()
    return lines


def _watch_stdin(lines: SimpleQueue[str]) -> None:
    rest = b""
    while part := os.read(sys.stdin.fileno(), 4096):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            lines.put(os.fsdecode(line))
    os._exit(1)


class FaultInjector:
    """A runner that crashes, hangs, is slow or runs out of memory at certain steps.

    Args:
        inner: the runner that does the work.
        faults: the faults of this engine.
        heartbeat: ticks during a slow step.
    """

    def __init__(self, inner: Runner, faults: Sequence[Fault], heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._faults = faults
        self._heartbeat = heartbeat
        self._steps = 0

    def launch(self, plan: BatchPlan) -> Pending:
        step, self._steps = self._steps, self._steps + 1
        due = [fault for fault in self._faults if fault.rows(step, plan)]
        for fault in due:
            match fault.kind:
                case FaultKind.CRASH:
                    os.kill(os.getpid(), signal.SIGKILL)
                case FaultKind.HANG:
                    threading.Event().wait()
                case FaultKind.ALLOC:
                    raise MemoryError(f"no memory for step {step} (an injected fault)")
        slow = sum(fault.seconds for fault in due)
        pending = self._inner.launch(plan)
        return SlowStep(pending, slow, self._heartbeat) if slow else pending

    def close(self) -> None:
        self._inner.close()


class SlowStep:
    """A step on a slow device."""

    def __init__(self, inner: Pending, seconds: float, heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._seconds = seconds
        self._heartbeat = heartbeat

    def wait(self) -> BatchResult:
        never, left = threading.Event(), self._seconds
        while left > 0:
            self._heartbeat.tick(Phase.DEVICE)
            never.wait(min(left, TICK_SECONDS))
            left -= TICK_SECONDS
        return self._inner.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
