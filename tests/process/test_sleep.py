"""Engines that are ended because they are not needed, and started again: real processes over the shadow model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import processes
from sluice.process.client import EngineGone
from sluice.process.sleep import PUT_TO_SLEEP
from sluice.testing import resolved
from sluice.types import Submit
from supervised import ask, check_answer, supervised

PROMPT = (1, 2, 3)


@pytest.fixture(autouse=True)
def _factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child import the factories of `shadow_engine`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


async def test_a_server_put_to_sleep_has_no_process_until_it_is_woken() -> None:
    """Memory that stays taken; a request that runs is cut off, or one that comes later waits for ever."""
    async with supervised() as engine:
        pid = engine.state.pid
        assert pid is not None
        inbox = engine.client.submit([Submit(engine.client.next_id(), PROMPT, resolved(30))])
        outputs = await inbox.get()
        asking = asyncio.create_task(engine.sleep.until_asleep())
        engine.sleep.ask()
        while outputs[-1].finish_reason is None:
            outputs += await inbox.get()
        check_answer(outputs, PROMPT, 30)
        engine.sleep.ask()
        await engine.sleep.until_asleep()
        await asking
        assert processes.ends(pid, 0)
        assert engine.state.is_asleep
        assert engine.state.pid is None
        with pytest.raises(EngineGone) as refused:
            await ask(engine.client, PROMPT, 5)
        assert str(refused.value) == PUT_TO_SLEEP
        engine.sleep.wake()
        await engine.sleep.until_awake()
        assert not engine.state.is_asleep
        assert engine.state.pid not in (None, pid)
        check_answer(await ask(engine.client, PROMPT, 5), PROMPT, 5)
        assert engine.state.stats.restarts == engine.state.stats.replayed_requests == 0


async def test_the_next_request_wakes_an_idle_engine() -> None:
    """It would wait for ever, or cost a restart of the budget."""
    async with supervised(idle_seconds=0.01, max_restarts=0) as engine:
        for _ in range(2):
            while not engine.state.is_asleep:
                await asyncio.sleep(0.01)
            assert not engine.running.done()
            answers = await asyncio.gather(*(ask(engine.client, PROMPT, 8) for _ in range(3)))
            for outputs in answers:
                check_answer(outputs, PROMPT, 8)
        assert engine.state.stats.restarts == 0


async def test_no_engine_with_a_request_is_idle() -> None:
    """However long a request takes, it keeps its engine."""
    async with supervised(idle_seconds=0.2, faults="slow@1=1") as engine:
        pid = engine.state.pid
        inbox = engine.client.submit([Submit(engine.client.next_id(), PROMPT, resolved(3))])
        outputs = await inbox.get()
        assert engine.state.pid == pid
        while outputs[-1].finish_reason is None:
            outputs += await inbox.get()
        check_answer(outputs, PROMPT, 3)


async def test_who_wakes_an_idle_server_need_not_send_a_request() -> None:
    """And a wake-up of a server that is awake does not wake it later."""
    async with supervised(idle_seconds=0.3) as engine:
        engine.sleep.wake()
        while not engine.state.is_asleep:
            await asyncio.sleep(0.01)
        engine.sleep.wake()
        await engine.sleep.until_awake()
        assert engine.state.is_serving


async def test_a_sleeping_engine_that_cannot_be_started_ends_the_server() -> None:
    """A wake-up that waits for ever."""
    async with supervised(factory="shadow_engine:once", max_restarts=0) as engine:
        engine.sleep.ask()
        await engine.sleep.until_asleep()
        engine.sleep.wake()
        await engine.sleep.until_awake()
        assert engine.state.has_given_up
        assert await engine.running == engine.state.status


async def test_a_server_ends_while_its_engine_falls_asleep() -> None:
    """The engine would be left behind."""
    async with supervised() as engine:
        pid = engine.state.pid
        assert pid is not None
        engine.sleep.ask()
        while not engine.state.is_asleep:
            await asyncio.sleep(0)
    assert processes.ends(pid, 0)
