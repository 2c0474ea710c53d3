"""Replicas: the way from an ingress to the replicas of one deployment, through a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from sluice.engine.messages import Stats
from sluice.fleet.calls import ReplicaCall, ReplicaTarget
from sluice.fleet.kv_event_sync import KvChanges
from sluice.fleet.replica_router import ReplicaReport, ReplicaRouter
from sluice.process.wire import Ready, WireError, decode

LOGGER = logging.getLogger("sluice.fleet")
ASK_SECONDS = 5.0
"""Seconds that a replica has to report its state."""
INTRODUCTION_PAUSE = 0.5
"""Seconds until a replica of the own version is looked for again."""


class ReplicaLost(Exception):
    """A replica cannot continue a request; the message says why."""


class Replicas:
    """Sends calls and questions to replicas.

    Args:
        handle: of their deployment (`ray.serve.handle.DeploymentHandle`).
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._streams = streaming(handle)
        exceptions = importlib.import_module("ray.exceptions")
        serve_exceptions = importlib.import_module("ray.serve.exceptions")
        self._errors: tuple[type[Exception], ...] = (
            exceptions.RayError,
            serve_exceptions.RayServeException,
            TimeoutError,
        )

    async def introduction(self, version: str) -> Ready:
        """Wait for a replica of a version, and return what its engine is like."""
        while True:
            try:
                theirs, data = await self._handle.introduce.remote(ReplicaTarget(version=version))
            except self._errors as error:
                LOGGER.warning("a replica did not say what it is: %s", one_line_of(error))
            else:
                if theirs == version:
                    ready = decode(data)
                    assert isinstance(ready, Ready), f"not ready: {ready}"
                    return ready
            await asyncio.sleep(INTRODUCTION_PAUSE)

    async def stream(self, call: ReplicaCall) -> AsyncGenerator[bytes, None]:
        """Send a request to the replica that its chooser chooses, and yield what comes back, in the form of `wire`.

        To close the generator aborts the request.

        Raises:
            ReplicaLost: the replica cannot continue.
        """
        frames = self._streams.remote(call)
        is_over = False
        try:
            async for frame in frames:
                yield frame
            is_over = True
        except self._errors as error:
            is_over = True
            raise ReplicaLost(one_line_of(error)) from error
        finally:
            if not is_over:
                frames.cancel()

    async def ask(self, chooser: ReplicaRouter, *, flush: bool) -> Mapping[str, ReplicaReport]:
        """Return what each replica that answers reports of itself, by key.

        Args:
            chooser: knows which may serve, and what they reported before.
            flush: let them forget what is cached and not in use, first.
        """
        keys = chooser.replicas or [""]  # to ask any one tells the chooser which there are
        answers = await asyncio.gather(
            *(self._ask(ReplicaTarget(chooser, key), flush, chooser.first_wanted(key)) for key in keys)
        )
        return {key: report for answer in answers for key, report in answer.items()}

    async def _ask(self, target: ReplicaTarget, flush: bool, first: int) -> dict[str, ReplicaReport]:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                key, data, pages = await self._handle.tell.remote(target, flush, first)
            stats = None if data is None else decode(data)
            changes = None if pages is None else KvChanges.decoded(*pages)
        except self._errors as error:
            LOGGER.info("a replica does not tell its state: %s", one_line_of(error))
            return {}
        except (WireError, TypeError, ValueError) as error:  # the answer of another version
            LOGGER.warning("a replica's answer cannot be read: %s", one_line_of(error))
            return {}
        return {key: ReplicaReport(stats, changes)} if isinstance(stats, Stats) else {}


def streaming(handle: Any) -> Any:
    """Return a handle whose calls stream pieces of answers as messages, and not as objects that each process looks up,
    for which Ray takes about twice the processor time. The option has no public name: a version without it takes more.
    """
    try:
        return handle.options(method_name="stream", stream=True, _by_reference=False)
    except TypeError:
        return handle.options(method_name="stream", stream=True)


def one_line_of(error: Exception) -> str:
    """Return the last line of an error that is not empty: those of Ray are long, and end with what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
