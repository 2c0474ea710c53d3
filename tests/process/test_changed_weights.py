"""A model whose files change on the disk while a server runs: its streams do not go on with other weights."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from any_checkpoint import any_checkpoint
from sluice.config import EngineConfig
from sluice.process.client import EngineGone, Inbox
from sluice.process.wire import FACTORY
from sluice.testing import resolved
from sluice.types import Submit
from supervised import Supervised, ask, supervised

PROMPT = tuple(range(1, 9))
REFUSED = "have changed since this server loaded them"


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    folder = tmp_path / "model"
    shutil.copytree(any_checkpoint(), folder)
    return EngineConfig.from_options({"model": str(folder), "max_total_tokens": 512, "threads": 1})


def swap(config: EngineConfig) -> None:
    """Put other weights of the same shape into the place of those that were loaded."""
    weights = Path(config.model.model) / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    half = len(changed) // 2
    changed[half:-2] = changed[half + 2 :]
    weights.unlink()
    weights.write_bytes(changed)


async def read_all(inbox: Inbox) -> None:
    while True:
        await inbox.get()


async def answer(engine: Supervised) -> list[int]:
    return [token for output in await ask(engine.client, PROMPT, 16) for token in output.token_ids]


async def test_a_stream_ends_with_an_error_when_the_next_engine_has_other_weights(config: EngineConfig) -> None:
    """It would go on with the words of another model in the middle of a sentence."""
    async with supervised(config=config, factory=FACTORY, max_restarts=1) as engine:
        inbox = engine.client.submit([Submit(engine.client.next_id(), PROMPT, resolved(400))])
        await inbox.get()
        swap(config)
        assert engine.state.pid is not None
        os.kill(engine.state.pid, signal.SIGKILL)
        how = await engine.running
        engine.client.fail(how)
        with pytest.raises(EngineGone, match=REFUSED):
            await read_all(inbox)


async def test_a_model_that_was_changed_on_purpose_is_loaded_when_the_engine_is_woken(config: EngineConfig) -> None:
    async with supervised(config=config, factory=FACTORY, max_restarts=0) as engine:
        before = await answer(engine)
        engine.sleep.ask()
        await engine.sleep.until_asleep()
        swap(config)
        engine.sleep.wake(new_weights=True)
        await engine.sleep.until_awake()
        after = await answer(engine)
        engine.sleep.ask()
        await engine.sleep.until_asleep()
        swap(config)
        engine.sleep.wake()
        await engine.sleep.until_awake()
        assert engine.state.has_given_up
        assert REFUSED in engine.running.result()
    assert before != after
