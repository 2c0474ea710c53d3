"""The trace of a server: its engine's process writes it, and leaves it whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from serving import run
from sluice.config import EngineConfig
from sluice.process.client import EngineClient
from sluice.process.launch import EngineProcess
from sluice.process.wire import Start
from sluice.testing import resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.replay import replay
from sluice.types import Submit

TESTS = Path(__file__).parents[1]


def test_the_engines_process_leaves_a_whole_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option crosses the wire, and ending the server in the middle of a request loses nothing."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    path = tmp_path / "trace.jsonl"
    config = EngineConfig.from_options({"model": "a folder", "trace": str(path)})

    async def serve() -> None:
        engine = await EngineProcess.spawn(Start(config, "traced_engine:build"))
        await engine.ready()
        client = EngineClient(engine.send)
        running = asyncio.create_task(engine.run(client.deliver))
        first = client.submit([Submit(client.next_id(), (1, 2, 3), resolved(3))])
        while client.num_open:
            await first.get()
        assert len(path.read_text().splitlines()) == 5, "an engine at rest has written everything"
        second = client.submit([Submit(client.next_id(), (1,) * 20, resolved(40))])
        await second.get()
        await engine.close()
        await running

    run(serve)
    with TraceReader(path) as trace:
        found = replay(trace)
        assert not trace.is_truncated
    assert found.divergence is None
    assert found.steps > 5
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds.count("add") == 2
