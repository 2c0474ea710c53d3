"""Runs the real server over the ShadowRunner, in processes of its own, with steps of a chosen length."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoint.shapes import QWEN3
from benchmarks.make_checkpoint import write_checkpoint
from sluice.assembly.resolve import resolve
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.protocols import Link, Pending
from sluice.engine.trace import RecentSteps
from sluice.process.wire import Ready, Start
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ShadowRunner
from sluice.tracing.file import TraceFile, create
from sluice.tracing.format import VERSION, Header
from sluice.tracing.recorder import Recorder
from sluice.types import BatchPlan
from sluice.types.request_limits import Limits

PAGE_SIZE = 16
MAX_MODEL_LEN = 4096
VOCAB = 500
"""The shadow model answers with ids below this: with ordinary tokens of the tokenizer."""
TINY = QWEN3.tiny()
"""The checkpoint whose tokenizer is used."""
STEP_MS = "SHADOW_STEP_MS"
SERVE = """
import json, sys
from sluice.config import EngineConfig, ServerConfig
from sluice.http.serve import run

port, options, of_server = sys.argv[1:]
engine = EngineConfig.from_options(json.loads(options))
server = ServerConfig(port=int(port), **json.loads(of_server))
sys.exit(run(server, engine, factory="benchmarks.shadow_server:build"))
"""
POOL_TOKENS = 1 << 20


class PacedRunner:
    """The shadow model, with steps of at least `step_seconds`."""

    def __init__(self, step_seconds: float) -> None:
        self._inner = ShadowRunner(page_size=PAGE_SIZE, vocab_size=VOCAB)
        self._step_seconds = step_seconds
        self._due = 0.0

    def launch(self, plan: BatchPlan) -> Pending:
        step = self._inner.launch(plan)
        now = time.perf_counter()
        if self._due > now:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + self._step_seconds
        return step

    def close(self) -> None:
        self._inner.close()


def build(start: Start, link: Link) -> tuple[Engine, Ready]:
    """Build the engine, in its own process."""
    config = start.config
    chosen = resolve(config, "cpu")
    tokens = chosen.config.cache.max_total_tokens
    assert tokens is not None
    setup = SchedulerSetup(chosen.config.scheduler.limits(), tokens // PAGE_SIZE, PAGE_SIZE)
    runner, clock = PacedRunner(float(os.environ[STEP_MS]) / 1000), WallClock()
    limits = Limits(TINY.vocab_size, MAX_MODEL_LEN, tokens)
    ready = Ready("shadow", config.model.model, limits, (), config=chosen.config, reasons=chosen.reasons)
    if config.trace.trace is None:
        return Engine(setup.build(), runner, link, clock=clock, trace=RecentSteps()), ready
    path = Path(config.trace.trace)
    create(path)
    header = Header(
        version=VERSION, sluice="", model="shadow", token_ids=True, setup=setup, depth=1, unix_time=time.time()
    )
    journal = TraceFile(path, header, key=b"")  # its times are those of the clock
    recorder = Recorder(setup.build(), RecentSteps(), journal, clock)
    return Engine(recorder, runner, link, clock=clock, trace=recorder), ready


@contextmanager
def server(
    step_ms: float, *, of_server: Mapping[str, object] | None = None, **options: object
) -> Iterator[tuple[int, int]]:
    """Run a server with these options of the engine. Returns its port, and the id of the HTTP server's process.

    Args:
        of_server: options of the HTTP server.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}", STEP_MS: str(step_ms)}
    chosen = {"page_size": PAGE_SIZE, "max_total_tokens": POOL_TOKENS} | options
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) / "tiny"
        write_checkpoint(folder, TINY)
        settings = json.dumps({"model": str(folder)} | chosen), json.dumps(dict(of_server or {}))
        command = [sys.executable, "-c", SERVE, str(port), *settings]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True))
        assert process.stdout is not None
        try:
            while "curl" not in (line := process.stdout.readline()):
                assert line or process.poll() is None, "the server ended"
            yield port, process.pid
        finally:
            process.terminate()


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB. Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started: those of the engine. Linux only."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
