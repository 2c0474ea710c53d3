"""`sluice serve`: HTTP from the first moment, an engine beside it, and an orderly end.

SIGTERM   finish what runs, begin no new requests, then end
SIGINT    (Ctrl-C) end now: what runs is cut off with an error that says so
a second  end at once
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from sluice.assembly.explain import explain
from sluice.config import ConfigError, EngineConfig, ServerConfig
from sluice.http.app import create_app
from sluice.http.auth import read_keys
from sluice.http.backend import Backend, Service
from sluice.http.body import BodyLimits
from sluice.http.calls import Listener, RequestLog
from sluice.http.metrics import Metrics
from sluice.http.otel import open_traces
from sluice.http.timeouts import TimeLimitedProtocol
from sluice.process.client import EngineClient
from sluice.process.engine_process import freeze_gc
from sluice.process.engine_state import EngineState
from sluice.process.launch import EngineStartError, EngineTimeouts
from sluice.process.logs import configure_logging
from sluice.process.supervisor import Supervisor
from sluice.process.wire import FACTORY, Ready, Start
from sluice.text.tokenizer import Tokenizer, TokenizerError

LOGGER = logging.getLogger("sluice.server")
EXIT_FAILED, EXIT_USAGE = 1, 2
EXIT_SECONDS = 2
"""How long open connections may take to end once their streams were ended."""


class CannotListen(OSError):
    """The address cannot be listened on; the message is one line for the user."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, in whose place are `StopSignals`."""

    @classmethod
    def of(cls, app: FastAPI) -> Self:
        config = uvicorn.Config(
            app,
            http=TimeLimitedProtocol,
            lifespan="off",
            log_config=None,  # its messages go where our own log goes
            access_log=False,
            timeout_graceful_shutdown=EXIT_SECONDS,
        )
        return cls(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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


def run(server: ServerConfig, engine: EngineConfig, *, given: Collection[str] = (), factory: str = FACTORY) -> int:
    """Serve until SIGINT or SIGTERM.

    Args:
        given: names of the options that the user set.

    Returns:
        The exit status: 1 if the engine did not start, or died too often; 2 for an option that cannot be honoured.
    """
    configure_logging(server.log_level, server.log_format)
    listeners: list[Listener] = [RequestLog()]
    try:
        with contextlib.ExitStack() as stack:
            if server.otlp_traces_endpoint is not None:
                traces = open_traces(server.otlp_traces_endpoint)
                listeners.append(stack.enter_context(contextlib.closing(traces)))
            return asyncio.run(serve(server, engine, listeners, given=given, factory=factory))
    except (CannotListen, ConfigError, EngineStartError, TokenizerError) as error:
        print(f"sluice: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


async def serve(
    server: ServerConfig, engine: EngineConfig, listeners: Sequence[Listener], *, given: Collection[str], factory: str
) -> int:
    """Serve HTTP and run the engine until one of them ends, or a signal comes. Returns the exit status.

    Args:
        listeners: receive every call when it is over.

    Raises:
        CannotListen: the port is in use, or the address is not this machine's.
        ConfigError: the API keys cannot be read.
        EngineStartError, TokenizerError: the checkpoint cannot be served.
    """
    keys = read_keys(server)
    listener = listen(server.host, server.port)
    address, port, *_ = listener.getsockname()
    if (warning := exposure_warning(address, has_key=bool(keys))) is not None:
        LOGGER.warning("%s", warning)
    state, metrics = EngineState(), Metrics()
    backend = Backend(state)
    client = EngineClient(observer=metrics, recovery=state.stats)
    start = Start(engine, factory, server.log_level, server.log_format, server.inject_fault or "")
    timeouts = EngineTimeouts(server.start_timeout, server.heartbeat_timeout, server.step_timeout)
    supervisor = Supervisor(start, client, state, server.max_engine_restarts, timeouts)
    app = create_app(
        backend,
        body_limits=BodyLimits(server.max_request_bytes),
        api_keys=keys,
        metrics=metrics,
        listeners=listeners,
    )
    http = HttpServer.of(app)
    serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
    url = url_of(server.host, port)
    living = asyncio.create_task(live(backend, supervisor, client, server, url, metrics, given=given), name="engine")
    signals = StopSignals()
    stopping = asyncio.create_task(signals.stop.wait(), name="stop-signal")
    draining = asyncio.create_task(signals.drain.wait(), name="drain-signal")
    try:
        ends = {serving, living, stopping}
        await asyncio.wait({*ends, draining}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            backend.drain()
            await _finish(http.server_state.tasks.copy(), ends, server.drain_timeout)
        if serving.done():
            serving.result()
        return 1 if living.done() and living.result() else 0
    finally:
        for task in (living, stopping, draining):
            task.cancel()
        await asyncio.wait({living, stopping, draining})
        backend.close("the server is shutting down")
        await supervisor.close(at_once=signals.hurry.is_set())
        http.should_exit, http.force_exit = True, signals.hurry.is_set()
        await asyncio.wait({serving})


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
    url: str,
    metrics: Metrics,
    *,
    given: Collection[str],
) -> str:
    """Start the engine, and serve with it and with those that follow it. Returns why there is none any more.

    Raises:
        EngineStartError, TokenizerError: the checkpoint cannot be served.
    """
    ready = await supervisor.start()
    tokenizer = await asyncio.to_thread(Tokenizer.from_folder, Path(ready.folder))
    with contextlib.closing(tokenizer):
        name = metrics.model = server.served_model_name or ready.model
        eos_token_ids = tokenizer.eos_token_ids.union(ready.eos_token_ids)
        freeze_gc()
        settings = explain(replace(server, served_model_name=name), ready.config, ready.reasons, given)
        backend.open(Service(name, tokenizer, ready.limits, eos_token_ids, client, settings, ready.memory))
        print(announcement(url, name, ready, chat=tokenizer.has_chat_template), flush=True)
        how = await supervisor.run()
        backend.close(how)
    print(f"sluice: error: {how}", file=sys.stderr)
    return how


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        CannotListen: naming the address and what to do.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=is_dual)
    except (OSError, OverflowError) as error:
        reason = str(error).partition(" (while attempting to bind")[0]  # `create_server` repeats the address
        raise CannotListen(f"cannot listen on {host}:{port}: {reason}; choose another with --host or --port") from error


def exposure_warning(address: str, *, has_key: bool) -> str | None:
    """Return a warning if every client that reaches this machine can use the server, else None.

    Args:
        address: IP address that is listened on.
        has_key: clients need an API key.
    """
    if has_key or ip_address(address.partition("%")[0]).is_loopback:
        return None
    return (
        f"listening on {address} without an API key: every client that can reach it can use it and read its metrics;"
        " see docs/security.md"
    )


def url_of(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announcement(url: str, name: str, ready: Ready, *, chat: bool) -> str:
    """Return what a person who started the server needs to know: the model, its URL, and a command to try it."""
    limits = ready.limits
    lines = [f"Sluice serves {name} at {url}/v1 (up to {limits.max_request_tokens} tokens a request)."]
    if ready.is_bundled:
        lines.append(
            "This is the small model that comes with Sluice: it finds facts in what you write, and knows little else."
            " Serve a large one with: sluice serve MODEL"
        )
    lines += ["Try it:", f"  {curl(url, name, chat=chat)}"]
    return "\n".join(lines)


def curl(url: str, name: str, *, chat: bool) -> str:
    """Return a command that streams an answer, ready to paste."""
    question = "What is a sluice?"
    body: dict[str, object] = {"model": name}
    body |= {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": question}
    body |= {"max_tokens": 64, "stream": True}
    path = "chat/completions" if chat else "completions"
    data = shlex.quote(json.dumps(body))
    return f"curl -N {url}/v1/{path} -H 'Content-Type: application/json' -d {data}"
