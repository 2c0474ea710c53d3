"""`sluice serve`: HTTP from the first moment, an engine beside it, and an orderly end.

SIGTERM   finish what runs, begin no new requests, then end
SIGINT    (Ctrl-C) end now: what runs is cut off with an error that says so
a second  end at once
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from starlette.applications import Starlette

from sluice.assembly.ranks import refuse_ranks
from sluice.config import ConfigError, EngineConfig, ModelConfig, ServerConfig
from sluice.engine.clock import WallClock
from sluice.http.apis.adapters import AdapterFolder
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.app import create_app
from sluice.http.base.auth import read_admin_keys, read_keys
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyLimits
from sluice.http.base.calls import Listener, RequestLog
from sluice.http.base.chat_template_file import read_chat_template
from sluice.http.base.early_checks import check_model
from sluice.http.base.early_tokenizer import EarlyTokenizer, cached_place, place_of
from sluice.http.base.isolation import CacheIsolation, read_isolation
from sluice.http.base.origins import Origins, allowed_origins
from sluice.http.base.parsers import check_parsers
from sluice.http.base.served_model import ServedModel
from sluice.http.base.unknown_fields import IgnoredFieldsLog
from sluice.http.edge.connections import descriptor_limit, max_connections
from sluice.http.edge.hosts import answered_names
from sluice.http.edge.http_server import HttpServer
from sluice.http.edge.listening import CannotListen, exposure_warning, listen, url_of
from sluice.http.edge.tls import read_certificate
from sluice.http.observe.announcement import announcement, own_command
from sluice.http.observe.http_metrics import Metrics
from sluice.http.observe.loading_report import LoadingReport
from sluice.http.observe.loop_watchdog import LoopWatchdog
from sluice.http.observe.otel import open_traces
from sluice.http.observe.trace_feed import TraceFeed
from sluice.models.checkpoint import CheckpointError
from sluice.process.client import EngineClient
from sluice.process.early import EarlyEngine
from sluice.process.engine_process import freeze_gc
from sluice.process.engine_state import EngineState
from sluice.process.launch import EngineStartError, EngineTimeouts
from sluice.process.logs import configure_logging, one_line
from sluice.process.observer import Observers
from sluice.process.ranks.node import run_node
from sluice.process.sleep import Sleep
from sluice.process.supervisor import Supervisor
from sluice.process.wire import FACTORY, Ready, Start
from sluice.text.tokenizer import TokenizerError

LOGGER = logging.getLogger("sluice.server")
SWITCH_SECONDS = 0.001
"""Seconds until a thread that computes lets the event loop run: a fifth of Python's, since an answer takes several
turns."""
EXIT_FAILED, EXIT_USAGE = 1, 2
CANCEL_SECONDS = 1
"""Time after which the engine's task is cancelled again."""


class StopSignals:
    """The signals that the process was sent; to be made in the event loop."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        """Finish what runs."""
        self.stop = asyncio.Event()
        """End."""
        self.hurry = asyncio.Event()
        """Wait for nothing."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.received, number)

    def received(self, number: signal.Signals) -> None:
        if self.drain.is_set() or self.stop.is_set():
            self.hurry.set()
            self.stop.set()
        elif number is signal.SIGTERM:
            self.drain.set()
        else:
            self.stop.set()


def run(
    server: ServerConfig,
    engine: EngineConfig,
    *,
    given: Collection[str] = (),
    factory: str = FACTORY,
    early: EarlyEngine | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM.

    Args:
        given: names of the options that the user set.
        early: a process for the first engine.

    Returns:
        The exit status: 1 if the engine did not start, or died too often; 2 for an option that cannot be honoured.
    """
    configure_logging(server.log_level, server.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    listeners: list[Listener] = [RequestLog(), IgnoredFieldsLog()]
    try:
        if engine.parallel.node_rank > 0:
            refuse_ranks(engine)
            _refuse_unloading(server, engine)
            return run_node(start_of(server, engine, factory))
        with contextlib.ExitStack() as stack:
            if server.otlp_traces_endpoint is not None:
                traces = open_traces(server.otlp_traces_endpoint)
                listeners.append(stack.enter_context(contextlib.closing(traces)))
            return asyncio.run(serve(server, engine, listeners, given=given, factory=factory, early=early))
    except (CannotListen, ConfigError, CheckpointError, EngineStartError, TokenizerError) as error:
        print(f"sluice: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


async def serve(
    server: ServerConfig,
    engine: EngineConfig,
    listeners: Sequence[Listener],
    *,
    given: Collection[str],
    factory: str,
    early: EarlyEngine | None = None,
) -> int:
    """Serve HTTP and run the engine until one of them ends, or a signal comes. Returns the exit status.

    Args:
        listeners: receive every call when it is over.

    Raises:
        CannotListen: the port is in use, or the address is not this machine's.
        ConfigError: the API keys, the certificate, the secret of --cache-isolation or the chat template cannot be
            read, or there are too few descriptors.
        EngineStartError, TokenizerError, CheckpointError: the checkpoint cannot be served.
    """
    _refuse_unloading(server, engine)
    keys = read_keys(server)
    admin_keys = read_admin_keys(server, keys)
    tls, isolation, folder = read_certificate(server), read_isolation(server, engine), _adapter_folder(server, engine)
    chat_template = await asyncio.to_thread(read_chat_template, server)
    check_parsers(server)
    server = replace(server, max_connections=max_connections(server.max_connections, descriptor_limit()))
    assert server.max_connections is not None
    listener = listen(server.host, server.port)
    address, port, *_ = listener.getsockname()
    if (warning := exposure_warning(address, has_key=bool(keys))) is not None:
        LOGGER.warning("%s", warning)
    state, metrics, feed = EngineState(), Metrics(), TraceFeed(WallClock().now, token_hex(8)) if server.page else None
    backend, client = Backend(state), _new_client(state, metrics, feed)
    start, sleep = start_of(server, engine, factory), Sleep(client, state, server.idle_unload)
    report = LoadingReport(sys.stderr if server.log_format == "text" else None)
    supervisor = Supervisor(
        *(start, client, state, server.max_engine_restarts, EngineTimeouts.of(server), sleep),
        on_loading=report.show,
        early=early,
    )
    access = Access(keys, admin_keys, answered_names(server, address), allowed_origins(server), isolation)
    app = _new_app(server, access, backend, metrics, listeners, sleep, feed, folder)
    http = HttpServer.of(app, server.max_connections, tls)
    serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
    url = url_of(server.host, port, scheme="http" if tls is None else "https")
    guess = partial(cached_place, engine.model)
    tokenizers = EarlyTokenizer(server, place_of(engine.model), chat_template, guess)
    living = asyncio.create_task(
        live(backend, supervisor, client, server, engine.model, url, metrics, tokenizers, report, given=given),
        name="engine",
    )
    signals = StopSignals()
    try:
        await _wait_for_end(serving, living, signals, backend, http, server.drain_timeout)
        if serving.done():
            serving.result()
        return 1 if living.done() and living.result() else 0
    finally:
        await _end(backend, living, supervisor, serving, http, signals)


class Access(NamedTuple):
    """Who may call a server, as `create_app` takes it."""

    api_keys: Collection[str]
    admin_keys: Collection[str]
    hosts: Collection[str] | None
    origins: Origins
    isolation: CacheIsolation


def _new_app(
    server: ServerConfig,
    access: Access,
    backend: Backend,
    metrics: Metrics,
    listeners: Sequence[Listener],
    sleep: Sleep,
    feed: TraceFeed | None,
    adapters: AdapterFolder | None,
) -> Starlette:
    return create_app(
        backend,
        api_keys=access.api_keys,
        admin_keys=access.admin_keys,
        hosts=access.hosts,
        origins=access.origins,
        isolation=access.isolation,
        body_limits=BodyLimits(server.max_request_bytes),
        strict_fields=server.strict_fields,
        metrics=metrics,
        listeners=listeners,
        sleep=sleep if server.enable_admin else None,
        responses=ResponseStore(server.max_stored_responses, server.max_stored_response_bytes),
        feed=feed,
        adapters=adapters,
    )


def _adapter_folder(server: ServerConfig, engine: EngineConfig) -> AdapterFolder | None:
    """Return the folder whose adapters may be loaded over HTTP, if there is one.

    Raises:
        ConfigError: there is no such folder, or no room for adapters.
    """
    if server.lora_dir is None:
        return None
    if not engine.lora.is_on:
        raise ConfigError(f"--lora-dir {server.lora_dir} needs --enable-lora")
    try:
        return AdapterFolder(Path(server.lora_dir))
    except OSError as error:
        raise ConfigError(f"--lora-dir {server.lora_dir} cannot be read: {error.strerror}") from error


def _new_client(state: EngineState, metrics: Metrics, feed: TraceFeed | None) -> EngineClient:
    observer = metrics if feed is None else Observers(metrics, feed)
    return EngineClient(observer=observer, recovery=state.stats)


def _refuse_unloading(server: ServerConfig, engine: EngineConfig) -> None:
    given = "--enable-admin" if server.enable_admin else None
    if server.idle_unload is not None:
        given = f"--idle-unload {server.idle_unload:g}"
    if given is not None and engine.parallel.nnodes > 1:
        raise ConfigError(
            f"{given} is not supported beside --nnodes {engine.parallel.nnodes}: without an engine, the other machines"
            " give up waiting for the next one"
        )


def start_of(server: ServerConfig, engine: EngineConfig, factory: str) -> Start:
    """Return how the server's first engine is built."""
    return Start(
        engine,
        factory,
        server.log_level,
        server.log_format,
        server.inject_fault or "",
        start_seconds=0.9 * server.start_timeout,  # less than it has, so that it can say what it lacks
    )


async def _end(
    backend: Backend,
    living: asyncio.Task[str],
    supervisor: Supervisor,
    serving: asyncio.Task[None],
    http: HttpServer,
    signals: StopSignals,
) -> None:
    """End the engine, then the connections."""
    backend.close("the server is shutting down")  # before `live` closes the tokenizer that the requests use
    while not living.done():  # `wait_for` of Python 3.11 may lose a cancellation that comes as its result does
        living.cancel()
        await asyncio.wait({living}, timeout=CANCEL_SECONDS)
    await supervisor.close(at_once=signals.hurry.is_set())
    http.should_exit, http.force_exit = True, signals.hurry.is_set()
    await asyncio.wait({serving})


async def _wait_for_end(
    serving: asyncio.Task[None],
    living: asyncio.Task[str],
    signals: StopSignals,
    backend: Backend,
    http: HttpServer,
    drain_seconds: float,
) -> None:
    """Wait until one of the tasks ends, or a signal comes; after SIGTERM, until the calls that run have ended."""
    stopping = asyncio.create_task(signals.stop.wait(), name="stop-signal")
    draining = asyncio.create_task(signals.drain.wait(), name="drain-signal")
    ends: set[asyncio.Task[Any]] = {serving, living, stopping}
    try:
        await asyncio.wait({*ends, draining}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            backend.drain()
            await _finish(http.server_state.tasks.copy(), ends, drain_seconds)
    finally:
        stopping.cancel()
        draining.cancel()
        await asyncio.wait({stopping, draining})


async def _finish(work: Collection[asyncio.Task[None]], ends: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait until all work is done, at most `seconds`, and no longer than until one of `ends` is done."""
    if work:
        done = asyncio.create_task(asyncio.wait(work))
        await asyncio.wait({done, *ends}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()


async def live(
    backend: Backend,
    supervisor: Supervisor,
    client: EngineClient,
    server: ServerConfig,
    asked: ModelConfig,
    url: str,
    metrics: Metrics,
    tokenizers: EarlyTokenizer,
    report: LoadingReport,
    *,
    given: Collection[str],
) -> str:
    """Start the engine, and serve with it and with those that follow it. Returns why there is none any more.

    Args:
        asked: the model that the options name.

    Raises:
        EngineStartError, TokenizerError, CheckpointError, ConfigError: the checkpoint cannot be served.
    """
    with contextlib.closing(tokenizers), contextlib.closing(report):
        ready = await _started(supervisor, asyncio.to_thread(check_model, asked), tokenizers.failure())
        model = await ServedModel.open(server, ready, Path(ready.tokenizer_folder), tokenizers, given)
    with contextlib.closing(model):
        name = metrics.model = model.names[0]
        freeze_gc()

        def serve_with(engine: Ready) -> None:
            metrics.classes = engine.limits.classes
            backend.open(model.service(engine, client))

        serve_with(ready)
        command = own_command(sys.argv[0], sys.executable)
        chat = model.tokenizer.has_chat_template
        print(announcement(url, name, ready, model.chosen, chat=chat, command=command, page=server.page), flush=True)
        with LoopWatchdog(metrics.pauses.add):
            how = await supervisor.run(serve_with)
        backend.close(how)
    print(f"sluice: error: {one_line(how)}", file=sys.stderr)
    return how


async def _started(supervisor: Supervisor, *checks: Awaitable[None]) -> Ready:
    """Start the first engine. A check that raises ends the wait for it."""
    starting: asyncio.Future[Ready] = asyncio.create_task(supervisor.start(), name="engine-start")
    checking: asyncio.Future[list[None]] = asyncio.gather(*checks)
    both: set[asyncio.Future[Any]] = {starting, checking}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        if checking.done():
            checking.result()
        return await starting
    finally:
        starting.cancel()
        checking.cancel()
        await asyncio.gather(starting, checking, return_exceptions=True)
