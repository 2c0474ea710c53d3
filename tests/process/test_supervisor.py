"""Engine processes that die, hang, lose messages or run out of memory: their requests go on in the next one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

import processes
from serving import run
from sluice.assembly.resolve import resolve
from sluice.config import ENGINE_GROUPS, GROUPS, ConfigError, EngineConfig
from sluice.process import socket_folder
from sluice.process.client import EngineGone, Inbox
from sluice.process.launch import EngineStartError, EngineTimeouts
from sluice.process.supervisor import config_of
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


async def test_clients_do_not_notice_kills() -> None:
    """In the middle of a step, and as soon as the next engine runs, while it computes a prompt for a second."""
    reader = (1, 2, 3, 99)
    async with supervised(faults="slow@6=60,slow@token:99=1") as engine:
        first = engine.state.pid
        assert first is not None
        calls = [asyncio.create_task(ask(engine.client, prompt, LENGTH)) for prompt in PROMPTS]
        inbox = engine.client.submit([Submit(engine.client.next_id(), reader, resolved(LENGTH))])
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


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("crash@7", "was killed by signal 9"),
        ("hang@7", "sent no heartbeat for"),
        ("alloc@7", "failed: MemoryError: no memory for step 7 (an injected fault)"),
        ("slow@7=60", "waited"),
    ],
)
def test_requests_go_on_after_any_fault(faults: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with supervised(faults=faults, timeouts=EngineTimeouts(start=30.0, heartbeat=2.0, step=2.0)) as engine:
            answers = await asyncio.gather(*(ask(engine.client, prompt, LENGTH) for prompt in PROMPTS))
            for prompt, outputs in zip(PROMPTS, answers, strict=True):
                check_answer(outputs, prompt, LENGTH)
            assert engine.state.stats.restarts == 1

    run(test)
    assert f"the engine {said}" in caplog.text


async def test_a_slow_step_does_not_end_the_engine() -> None:
    """A step may be longer than the heartbeat timeout, since it ticks while it waits."""
    async with supervised(faults="slow@3=3", timeouts=SHORT_TIMEOUTS) as engine:
        call = asyncio.create_task(ask(engine.client, PROMPTS[0], LENGTH))
        while not call.done():
            assert engine.state.is_serving
            assert engine.state.silent_seconds < SHORT_TIMEOUTS.heartbeat
            await asyncio.wait({call}, timeout=0.1)
        check_answer(call.result(), PROMPTS[0], LENGTH)
        assert engine.state.stats.restarts == 0


@pytest.mark.slow
async def test_a_long_call_of_compiled_code_does_not_end_the_engine() -> None:
    """One layer of a prompt that is not cut may take longer than the heartbeat timeout, and does not tick. The engine
    would be killed again and again, and then the request ended."""
    async with supervised(factory="shadow_engine:computes_long", timeouts=SHORT_TIMEOUTS) as engine:
        check_answer(await ask(engine.client, PROMPTS[0], LENGTH), PROMPTS[0], LENGTH)
        assert engine.state.stats.restarts == 0


async def test_only_a_request_that_kills_engines_is_ended() -> None:
    """It must be found among many others before the restarts are used up."""
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


async def read_all(inbox: Inbox) -> None:
    while True:
        await inbox.get()


async def test_a_server_gives_up_after_too_many_restarts() -> None:
    """It must not load a model forever; open and later requests get an error."""
    async with supervised(factory="shadow_engine:once", faults="slow@3=60", max_restarts=2) as engine:
        inbox = engine.client.submit([Submit(engine.client.next_id(), (1, 2, 3), resolved(LENGTH))])
        await inbox.get()
        assert engine.state.pid is not None
        os.kill(engine.state.pid, signal.SIGKILL)
        how = await engine.running
        assert how == (
            "the engine ended with status 7 before it was ready, after 2 restarts in 10 minutes (--max-engine-restarts)"
        )
        assert engine.state.has_given_up
        assert engine.state.pid is None
        engine.client.fail(how)
        with pytest.raises(EngineGone, match="2 restarts"):
            await read_all(inbox)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The machine's temporary folders, to be changed by a test."""
    found = socket_folder.temporary_folders()
    monkeypatch.setattr(socket_folder, "temporary_folders", lambda: found)
    return found


def test_an_engine_that_cannot_be_started_now_is_started_later(
    folders: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk or a missing folder for a minute must not use up the restarts: streams wait for the next engine."""
    here = folders.copy()

    async def test() -> None:
        async with supervised(faults="slow@6=60", max_restarts=1) as engine:
            call = asyncio.create_task(ask(engine.client, PROMPTS[0], LENGTH))
            while engine.state.reading is None or engine.state.reading.step < 6:
                await asyncio.sleep(0.01)
            folders[:] = ["/nowhere"]
            assert engine.state.pid is not None
            os.kill(engine.state.pid, signal.SIGKILL)
            while len(caplog.records) < 2:
                await asyncio.sleep(0.01)
            assert engine.state.is_refusing
            assert engine.state.status.endswith(
                "no other one can be started at the moment: the engine's process cannot be started: no temporary"
                " folder serves for sockets (/nowhere: No such file or directory); set TMPDIR to one that does"
            )
            folders[:] = here
            check_answer(await call, PROMPTS[0], LENGTH)
            assert not engine.state.is_refusing
            assert engine.state.stats.restarts == 1

    run(test)
    assert len(caplog.records) == 2, "an attempt that fails as the one before is not logged again"


async def test_a_server_gives_up_if_no_engine_can_be_started_for_too_long(folders: list[str]) -> None:
    async with supervised(timeouts=EngineTimeouts(restart=0.3)) as engine:
        folders[:] = ["/nowhere"]
        assert engine.state.pid is not None
        os.kill(engine.state.pid, signal.SIGKILL)
        how = await engine.running
        assert how.startswith("the engine was killed by signal 9, and no other one can be started at the moment:")
        assert how.endswith("; given up after 0.3 s (--restart-timeout)")
        assert engine.state.has_given_up
        assert engine.state.stats.restarts == 1


async def test_a_model_that_does_not_load_in_time() -> None:
    with pytest.raises(EngineStartError, match=r"not ready within 0\.5 s \(--start-timeout\)"):
        async with supervised(factory="shadow_engine:hang", timeouts=EngineTimeouts(start=0.5)):
            pass


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


def test_later_engines_accept_each_option_that_the_first_one_accepted() -> None:
    """A share of the memory sizes the first pool; beside that pool's size it would be refused at every restart."""
    accepted: set[str] = set()
    for group in ENGINE_GROUPS:
        for item in fields(GROUPS[group]):
            for value in values_of(item):
                with suppress(ConfigError):  # it does not count if the first engine refuses it
                    config = EngineConfig.from_options({"model": "a folder", item.name: value})
                    resolve(config, "cuda")
                    accepted.add(item.name)
                    resolve_later(config)
    assert {"mem_fraction_static", "gpu_memory_utilization", "page_size", "reserve"} <= accepted


def values_of(item: Field[Any]) -> tuple[Any, ...]:
    """Return values of an option, some of which may be invalid without another option."""
    if item.metadata["option"].choices:
        return tuple(item.metadata["option"].choices)
    kinds = {"bool": (True, False), "float": (0.5, 0.9), "int": (1, 8, 1 << 20)}
    return next((values for kind, values in kinds.items() if kind in str(item.type)), ("text", "window:64:64"))


def resolve_later(config: EngineConfig) -> None:
    try:
        resolve(config_of(config, 1, 4096), "cuda")
    except ConfigError as error:
        raise AssertionError(f"a later engine refuses what the first one accepted: {error}") from error
