"""The first engine's process is started before its server has all its modules, and works as any other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import processes
from serve_process import PATIENCE
from serving import expected_text
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.process.client import EngineClient
from sluice.process.early import EarlyEngine
from sluice.process.launch import EngineProcess, EngineStartError
from sluice.process.wire import Start
from sluice.testing import resolved

TESTS = Path(__file__).parents[1]
START = Start(EngineConfig.from_options({"model": "a folder"}), "shadow_engine:build")


@pytest.fixture(autouse=True)
def _factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child import the factories of `shadow_engine`."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@contextmanager
def started() -> Iterator[tuple[EarlyEngine, int]]:
    """A process, and its number."""
    early = EarlyEngine.start()
    assert early is not None
    assert early._process is not None
    try:
        yield early, early._process.pid
    finally:
        early.close()


def test_it_is_the_first_engine_and_answers() -> None:
    async def test() -> None:
        with started() as (early, pid):
            engine = await EngineProcess.spawn(START, early=early)
            assert engine.pid == pid
            assert (await engine.ready()).model == "shadow"
            client = EngineClient(engine.send)
            running = asyncio.create_task(engine.run(client.deliver))
            inbox = client.submit([Submit(client.next_id(), tuple(b"ab"), resolved(3))])
            tokens: list[int] = []
            while client.num_open:
                tokens += [token for output in await inbox.get() for token in output.token_ids]
            assert bytes(tokens).decode() == expected_text("ab", 3)
            second = await EngineProcess.spawn(START, early=early)
            assert second.pid != pid, "there is only one"
            await asyncio.gather(engine.close(), second.close())
            assert await running == "ended with status 0"
            assert processes.ends(pid, 0)

    asyncio.run(test())


def test_its_death_is_noticed() -> None:
    async def test() -> None:
        with started() as (early, pid):
            engine = await EngineProcess.spawn(START, early=early)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineStartError, match="was killed by signal 9 before it was ready"):
                await engine.ready()
            await engine.close()

    asyncio.run(test())


def test_another_one_takes_the_place_of_one_that_has_ended() -> None:
    async def test() -> None:
        with started() as (early, pid):
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            engine = await EngineProcess.spawn(START, early=early)
            assert engine.pid != pid
            assert (await engine.ready()).model == "shadow"
            await engine.close()

    asyncio.run(test())


def test_it_ends_with_its_server() -> None:
    """A command line that is refused, or a port in use: nothing may stay behind."""
    with started() as (early, pid):
        early.close()
        assert processes.ends(pid, PATIENCE)
    with started() as (early, pid):
        assert early._process is not None
        assert early._process.stdin is not None
        early._process.stdin.close()
        assert early._process.wait(PATIENCE) == 1
