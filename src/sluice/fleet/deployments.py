"""The deployments of a fleet on Ray Serve: replicas, each of which is a server without HTTP, and the ingress."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from sluice.fleet.identity import Identity
from sluice.fleet.ingress import IngressParts
from sluice.fleet.kv_event_sync import KvEventLog
from sluice.fleet.options import FleetPlan
from sluice.fleet.replica import ReplicaServer
from sluice.fleet.replicas import Replicas
from sluice.fleet.scaling import LoadMeter, ReplicaLoad
from sluice.fleet.transfer_file import TransferFile, decode_engine, prefill_engine
from sluice.process.client import EngineClient, EngineGone
from sluice.process.engine_state import EngineState
from sluice.process.launch import EngineTimeouts
from sluice.process.logs import configure_logging
from sluice.process.supervisor import Supervisor
from sluice.process.wire import Ready, Start, encode


class Replica:
    """An engine, and what keeps one running.

    Args:
        version: of the application.
        is_prefill: it computes prompts alone, and hands them over.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, plan: FleetPlan, version: str, is_prefill: bool = False
    ) -> None:
        server = plan.server
        enter(plan.folder)
        configure_logging(server.log_level, server.log_format)
        self._version = version
        self._key: str = importlib.import_module("ray.serve").get_replica_context().replica_id.unique_id
        self._running: asyncio.Task[None] | None = None
        """The task that runs the engine; None until it is loaded, since Ray may end a replica before."""
        self._state = EngineState()
        self._client = EngineClient(recovery=self._state.stats)
        folder = plan.fleet.transfer_folder
        self._file = TransferFile(Path(folder)) if is_prefill and folder is not None else None
        start = Start(
            decode_engine(plan.engine) if self._file is None else prefill_engine(plan.engine, self._file.path),
            plan.factory,
            server.log_level,
            server.log_format,
            server.inject_fault or "",
            start_seconds=0.9 * server.start_timeout,
            remote="" if folder is None or is_prefill else folder,
        )
        limit, pages = server.max_engine_restarts, KvEventLog() if plan.follows_pages else None
        timeouts = EngineTimeouts.of(server)
        self._supervisor = Supervisor(start, self._client, self._state, limit, timeouts, kv_events=pages)
        self._ready = await self._supervisor.start()
        self._identity = Identity.of(self._ready)
        page_size = self._ready.config.cache.page_size
        assert page_size is not None, f"not resolved: {self._ready.config.cache}"
        self._server = ReplicaServer(self._client, self._identity, page_size, pages)
        slots = self._ready.config.scheduler.max_running_requests
        assert slots is not None, f"not resolved: {self._ready.config.scheduler}"
        self._loads = LoadMeter(slots)
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        self._client.fail(await self._supervisor.run())

    async def stream(self, call: bytes) -> AsyncGenerator[bytes, None]:
        """Serve a request (`ReplicaServer.stream`)."""
        async with aclosing(self._server.stream(call)) as frames:
            async for frame in frames:
                yield frame

    async def introduce(self, target: bytes) -> tuple[str, bytes]:
        """Return the version of this replica, and its `Ready` in the form of `wire`."""
        return self._version, encode(self._ready)

    async def tell(self, target: bytes, flush: bool, first: int) -> tuple[str, bytes | None, Any]:
        """Return the key of this replica, its `Stats` in the form of `wire`, if there is an engine, and the changes of
        its prefix cache from number `first` on (`KvChanges.encoded`), if they are followed."""
        stats = await self._server.stats(flush=flush)
        changes = self._server.changes(first)
        return self._key, stats, None if changes is None else changes.encoded()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell the routers what this replica is. Ray asks once, when it is ready."""
        own = self._identity
        return {"model": own.model, "fingerprint": own.fingerprint, "wire": own.wire, "version": self._version}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Ray what this replica has to do."""
        try:
            return self._loads.seen(await self._client.stats()).as_json()
        except EngineGone:
            return ReplicaLoad().as_json()

    async def check_health(self) -> None:
        """Let Ray replace this replica when no other engine is started here."""
        if self._state.has_given_up:
            raise RuntimeError(self._state.status)

    async def __del__(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self._supervisor.close()
        if self._file is not None:
            self._file.close()


class Ingress:
    """The HTTP application.

    Args:
        replicas: handle of their deployment.
        version: of the application.
        prefill: handle of the deployment of prefill replicas; None: there are none.
    """

    async def __init__(  # type: ignore[misc]
        self, plan: FleetPlan, version: str, replicas: Any, prefill: Any = None
    ) -> None:
        self._front: IngressParts | None = None
        enter(plan.folder)
        configure_logging(plan.server.log_level, plan.server.log_format)
        found = Replicas(replicas)
        ready: Ready = await found.introduction(version)
        apart = None if prefill is None else Replicas(prefill)
        self._front = await IngressParts.open(plan, ready, found, apart)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the application. Ray calls this after the constructor."""
        assert self._front is not None, "Ray calls this after the constructor"
        return self._front.app

    async def __del__(self) -> None:
        if self._front is not None:
            await self._front.close()


def enter(folder: str) -> None:
    """Let paths be relative to a folder, if this machine has it."""
    with suppress(OSError):
        os.chdir(folder)
