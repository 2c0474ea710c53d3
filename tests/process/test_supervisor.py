"""Engine processes that die, hang, lose messages or run out of memory: their requests go on in the next one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import processes
from serving import run
from sluice.config import EngineConfig
from sluice.process.client import UNNUMBERED, EngineGone, Inbox
from sluice.process.launch import EngineStartError, EngineTimeouts
from sluice.process.supervisor import RestartBudget, config_of
from sluice.testing import resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.replay import replay
from sluice.types import FinishReason, Submit
from supervised import CONFIG, SHORT_TIMEOUTS, ask, check_answer, supervised

PROMPTS = [tuple(b"abcdefgh"[: n + 2]) for n in range(5)]
LENGTH = 60


@pytest.fixture(autouse=True)
def _factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child import the factories of `shadow_engine`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def test_clients_do_not_notice_kills() -> None:
    """In the middle of a step, and as soon as the next engine runs, while it computes a prompt for a second."""

    async def test() -> None:
        reader = (1, 2, 3, 99)
        async with supervised(faults="slow@6=60,slow@token:99=1") as engine:
            first = engine.state.pid
            assert first is not None
            calls = [asyncio.create_task(ask(engine.client, prompt, LENGTH)) for prompt in PROMPTS]
            inbox = engine.client.submit([Submit(UNNUMBERED, reader, resolved(LENGTH))])
            outputs = await inbox.get()
            os.kill(first, signal.SIGKILL)
            while engine.state.pid in (None, first):
                await asyncio.sleep(0.01)
            assert engine.state.pid is not None
            os.kill(engine.state.pid, signal.SIGKILL)
            while outputs[-1].finish_reason is None:
                outputs += await inbox.get()
            check_answer(outputs, reader, LENGTH)
            for prompt, call in zip(PROMPTS, calls, strict=True):
                check_answer(await call, prompt, LENGTH)
            stats = engine.state.stats
            assert stats.restarts == 2
            assert (sum(stats.to_resume.tally().counts), stats.ended_requests) == (1, 0)
            assert stats.replayed_requests >= 2
            assert stats.replayed_tokens > 0
            assert stats.last_resume_seconds is not None
            assert processes.ends(first, 0)

    run(test)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("crash@7", "was killed by signal 9"),
        ("hang@7", "sent no heartbeat for"),
        ("alloc@7", "failed: MemoryError: no memory for step 7 (an injected fault)"),
        ("drop@7", "sent an invalid message and was killed: received message 8 instead of message 7"),
        ("slow@7=60", "waited"),
    ],
)
def test_requests_go_on_after_any_fault(faults: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with supervised(faults=faults, timeouts=EngineTimeouts(30, 2.0, 2.0)) as engine:
            answers = await asyncio.gather(*(ask(engine.client, prompt, LENGTH) for prompt in PROMPTS))
            for prompt, outputs in zip(PROMPTS, answers, strict=True):
                check_answer(outputs, prompt, LENGTH)
            assert engine.state.stats.restarts == 1

    run(test)
    assert f"the engine {said}" in caplog.text


def test_a_lost_last_message_is_noticed() -> None:
    """No later message shows the gap, and the client would wait forever."""

    async def test() -> None:
        async with supervised(faults="drop@4", timeouts=SHORT_TIMEOUTS) as engine:
            check_answer(await ask(engine.client, PROMPTS[0], 4), PROMPTS[0], 4)
            assert engine.state.stats.restarts == 1

    run(test)


def test_a_slow_step_does_not_end_the_engine() -> None:
    """A step may be longer than the heartbeat timeout, since it ticks while it waits."""

    async def test() -> None:
        async with supervised(faults="slow@3=3", timeouts=SHORT_TIMEOUTS) as engine:
            call = asyncio.create_task(ask(engine.client, PROMPTS[0], LENGTH))
            while not call.done():
                assert engine.state.is_serving
                assert engine.state.silent_seconds < SHORT_TIMEOUTS.heartbeat
                await asyncio.wait({call}, timeout=0.1)
            check_answer(call.result(), PROMPTS[0], LENGTH)
            assert engine.state.stats.restarts == 0

    run(test)


def test_only_a_request_that_kills_engines_is_ended() -> None:
    """It must be found among many others before the restarts are used up."""

    async def test() -> None:
        poison = 200
        prompts = [tuple((37 * n + i) % 100 for i in range(3 + n)) for n in range(16)]
        prompts[9] = (*prompts[9], poison)
        async with supervised(faults=f"crash@token:{poison}", max_restarts=4) as engine:
            answers = await asyncio.gather(*(ask(engine.client, prompt, 30) for prompt in prompts))
            (end,) = answers.pop(9)
            assert end.finish_reason is FinishReason.ERROR
            assert end.error is not None
            assert end.error.startswith("the engine died while it worked on this request alone: it was killed")
            for prompt, outputs in zip(prompts[:9] + prompts[10:], answers, strict=True):
                check_answer(outputs, prompt, 30)
            assert engine.state.stats.ended_requests == 1

    run(test)


async def read_all(inbox: Inbox) -> None:
    while True:
        await inbox.get()


def test_a_server_gives_up_after_too_many_restarts() -> None:
    """It must not load a model forever; open and later requests get an error."""

    async def test() -> None:
        async with supervised(factory="shadow_engine:once", faults="slow@3=60", max_restarts=2) as engine:
            inbox = engine.client.submit([Submit(UNNUMBERED, (1, 2, 3), resolved(LENGTH))])
            await inbox.get()
            assert engine.state.pid is not None
            os.kill(engine.state.pid, signal.SIGKILL)
            how = await engine.running
            assert how == (
                "the engine ended with status 7 before it was ready, after 2 restarts in 10 minutes"
                " (--max-engine-restarts)"
            )
            assert engine.state.has_given_up
            assert engine.state.pid is None
            engine.client.fail(how)
            with pytest.raises(EngineGone, match="2 restarts"):
                await read_all(inbox)

    run(test)


def test_a_model_that_does_not_load_in_time() -> None:
    async def test() -> None:
        with pytest.raises(EngineStartError, match=r"not ready within 0\.5 s \(--start-timeout\)"):
            async with supervised(factory="shadow_engine:hang", timeouts=EngineTimeouts(start=0.5)):
                pass

    run(test)


def test_each_engine_leaves_a_trace_of_its_own(tmp_path: Path) -> None:
    """The next engine must not overwrite the trace of the engine that died."""
    path = tmp_path / "trace.jsonl"
    config = EngineConfig.from_options({"model": "a folder", "trace": str(path)})

    async def test() -> None:
        async with supervised(config=config, factory="traced_engine:build", faults="alloc@6") as engine:
            await ask(engine.client, (1, 2, 3), 20)

    run(test)
    for name, resumed in (("trace.jsonl", 0), ("trace.jsonl.1", 1)):
        with TraceReader(tmp_path / name) as trace:
            found = replay(trace)
            assert found.divergence is None
            assert found.steps > 5
        adds = [json.loads(line) for line in (tmp_path / name).read_text().splitlines() if '"kind":"add"' in line]
        assert [add.get("num_outputs", 0) > 0 for add in adds] == [bool(resumed)]


def test_later_engines_have_a_pool_as_large_as_the_first() -> None:
    """Sized by the memory that is free at the moment, it might not hold what the first engine had admitted."""
    assert config_of(CONFIG, 3, 4096) == replace(CONFIG, cache=replace(CONFIG.cache, max_total_tokens=4096))
    assert config_of(CONFIG, 0, None) == CONFIG


def test_restarts_are_counted_within_a_window() -> None:
    """One restart a day for a year is no reason to give up."""
    budget = RestartBudget(2, window=10)
    assert [budget.spend(now) for now in (0, 5, 9, 10.5, 12, 15.5)] == [True, True, False, True, False, True]
    assert not RestartBudget(0).spend(0)
