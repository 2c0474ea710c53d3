"""KV events from engine processes: what a subscriber knows is what the engines hold, one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from page_mirror import Mirror
from shadow_engine import PAGE_SIZE
from sluice.config import ConfigError, EngineConfig
from sluice.kv.digests import page_digests
from sluice.kv.events import PagesCleared
from sluice.llm.llm import LLM
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.kv_events.wire import decode_batch
from sluice.process.supervisor import Supervisor
from sluice.process.wire import Start
from sluice.types import Tier
from supervised import CONFIG, ask, supervised

PROMPT = tuple(range(10, 27))


@pytest.fixture(autouse=True)
def _factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child import the factories of `shadow_engine`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def publishing(endpoint: str) -> EngineConfig:
    options = EngineConfig.from_options({"kv_events": True, "kv_events_endpoint": endpoint}).kv_events
    return replace(CONFIG, kv_events=options)


class Router:
    """A subscriber with a picture of what is cached."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(b"")
        self._events.connect(endpoint)
        self._number: int | None = None
        self._mirror = Mirror()

    def knows(self, tokens: Sequence[int]) -> int:
        """The pages of a prompt that it knows to be on the device."""
        known = self._mirror.pages[Tier.DEVICE]
        return sum(digest in known for digest in page_digests(tokens, PAGE_SIZE))

    async def hear(self) -> bool:
        """Take the next batch. Returns whether the cache was cleared."""
        _, number, batch = await asyncio.wait_for(self._events.recv_multipart(), 20)
        events = decode_batch(batch).events
        self._mirror.apply(events)
        assert self._number is None or int.from_bytes(number, "big") == self._number + 1, "a batch is missing"
        self._number = int.from_bytes(number, "big")
        return any(isinstance(event, PagesCleared) for event in events)

    async def learn(self, tokens: Sequence[int]) -> None:
        """Take batches until all pages of a prompt are known."""
        while self.knows(tokens) < len(tokens) // PAGE_SIZE:
            await self.hear()

    async def forget(self) -> None:
        """Take batches until the cache is cleared."""
        while not await self.hear():
            pass

    def close(self) -> None:
        self._events.close(0)
        self._context.term()


async def test_a_subscriber_of_a_server_knows_what_is_cached(tmp_path: Path) -> None:
    """An answer, a flush, an engine that is killed and the one after it, in one sequence of numbers: a router that
    missed the death would send requests to pages that are gone."""
    endpoint = f"ipc://{tmp_path}/e"
    router = Router(endpoint)
    try:
        async with supervised(config=publishing(endpoint)) as engine:
            await ask(engine.client, PROMPT, 4)
            await router.learn(PROMPT)
            await engine.client.flush_cache()
            await router.forget()
            assert router.knows(PROMPT) == 0
            await ask(engine.client, PROMPT, 4)
            await router.learn(PROMPT)
            assert engine.state.pid is not None
            os.kill(engine.state.pid, signal.SIGKILL)
            await router.forget()
            await ask(engine.client, PROMPT[:9], 4)
            await router.learn(PROMPT[:9])
            assert router.knows(PROMPT) == 2
            assert engine.state.kv_events.published >= 5
            assert engine.state.kv_events.dropped == 0
    finally:
        router.close()


async def test_an_engine_without_subscribers_reports_nothing() -> None:
    """Events would cost time and memory in every step for no one."""
    async with supervised() as engine:
        await ask(engine.client, PROMPT, 4)
        assert engine.state.kv_events.published == 0


async def test_an_address_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    """It would be found after minutes of loading, or never."""
    state, config = EngineState(), publishing(f"ipc://{tmp_path}/none/e")
    supervisor = Supervisor(Start(config, "shadow_engine:build"), EngineClient(), state, 0)
    with pytest.raises(ConfigError, match=r"--kv-events-endpoint .* cannot be used: No such file or directory"):
        await supervisor.start()
    await supervisor.close()


def test_an_engine_in_the_process_of_a_program_publishes_nothing() -> None:
    with pytest.raises(ConfigError, match="--kv-events needs `sluice serve` or AsyncLLM"):
        LLM(kv_events=True)
