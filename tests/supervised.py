"""A supervisor and its engines, real processes over the shadow model, without HTTP in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from shadow_engine import VOCAB
from sluice.config import EngineConfig
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.launch import EngineTimeouts
from sluice.process.sleep import Sleep
from sluice.process.supervisor import Supervisor
from sluice.process.wire import Start
from sluice.testing import oracle, resolved
from sluice.types import FinishReason, Output, Submit

CONFIG = EngineConfig.from_options({"model": "a folder"})
TIMEOUTS = EngineTimeouts(start=30.0, heartbeat=5.0, step=30.0)
SHORT_TIMEOUTS = EngineTimeouts(start=30.0, heartbeat=2.0, step=30.0)
"""For tests that wait for the heartbeat to time out."""


@dataclass
class Supervised:
    """An engine under supervision."""

    client: EngineClient
    state: EngineState
    sleep: Sleep
    running: asyncio.Task[str]
    """Ends when the supervisor gives up, with the reason."""


@asynccontextmanager
async def supervised(
    *,
    config: EngineConfig = CONFIG,
    factory: str = "shadow_engine:build",
    faults: str = "",
    timeouts: EngineTimeouts = TIMEOUTS,
    max_restarts: int = 10,
    idle_seconds: float | None = None,
) -> AsyncIterator[Supervised]:
    """Run an engine that is ready, and the engines that replace it."""
    state = EngineState()
    client = EngineClient(recovery=state.stats)
    sleep = Sleep(client, state, idle_seconds)
    supervisor = Supervisor(Start(config, factory, faults=faults), client, state, max_restarts, timeouts, sleep)
    running: asyncio.Task[str] | None = None
    try:
        await supervisor.start()
        running = asyncio.create_task(supervisor.run())
        yield Supervised(client, state, sleep, running)
    finally:
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        await supervisor.close()


async def ask(client: EngineClient, prompt: Sequence[int], max_tokens: int) -> list[Output]:
    """Return all outputs of one request."""
    inbox = client.submit([Submit(client.next_id(), tuple(prompt), resolved(max_tokens))])
    outputs: list[Output] = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += await inbox.get()
    return outputs


def tokens_of(outputs: Sequence[Output]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


def check_answer(outputs: Sequence[Output], prompt: Sequence[int], max_tokens: int) -> None:
    """Check that the outputs are those of an engine that never died."""
    assert tokens_of(outputs) == oracle(prompt, resolved(max_tokens), vocab_size=VOCAB)
    assert [output.finish_reason for output in outputs if output.finish_reason] == [FinishReason.LENGTH]
