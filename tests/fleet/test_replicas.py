"""Answers of replicas through a handle of Ray, without Ray."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from fleet_world import FleetWorld
from sluice.fleet.kv_event_sync import KvChanges
from sluice.fleet.replica_router import ReplicaReport
from sluice.fleet.replicas import Replicas, streaming
from sluice.kv.events import PagesCleared
from sluice.process.wire import encode


class FakeHandle:
    """Answers questions with what a test gives it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.tell = SimpleNamespace(remote=self._told)

    def options(self, *, method_name: str, stream: bool, _by_reference: bool = True) -> FakeHandle:
        self.is_by_reference = _by_reference
        return self

    async def _told(self, target: object, flush: bool, first: int) -> object:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        *[("a", b"not a message", None), ("a", "no bytes", None), None, ("a",), ("a", b"", None), ("a", b"")],
        *[("a", None, (0, 1, b"no batch")), ("a", None, (0, 1)), ("a", None, 1)],
    ],
)
async def test_an_answer_that_cannot_be_read_is_none(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.exceptions", SimpleNamespace(RayError=OSError))
    monkeypatch.setitem(sys.modules, "ray.serve.exceptions", SimpleNamespace(RayServeException=OSError))
    world = FleetWorld(["a"])
    handle = FakeHandle(answer)
    replicas = Replicas(handle)
    assert await replicas.ask(world.chooser, flush=False) == {}
    asking = asyncio.create_task(world.replicas["a"].client.stats())
    for _ in range(2):
        await world.turn()
    changes = KvChanges(3, 5, (PagesCleared(),))
    handle.answer = ("a", encode(asking.result()), changes.encoded())
    assert await replicas.ask(world.chooser, flush=False) == {"a": ReplicaReport(asking.result(), changes)}


class OlderHandle(FakeHandle):
    """A handle that knows public options alone."""

    def options(self, *, method_name: str, stream: bool) -> OlderHandle:  # type: ignore[override]
        return self


def test_streams_go_as_messages_where_ray_can() -> None:
    """Each token was an object, which took Ray twice the processor time. Its option for that is not public."""
    assert not streaming(FakeHandle(None)).is_by_reference
    assert isinstance(streaming(OlderHandle(None)), OlderHandle)
