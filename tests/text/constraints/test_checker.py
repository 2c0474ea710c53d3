"""Constraints are checked in a process that hostile ones end, and not the server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import processes
from sluice.text.constraints import checker as module
from sluice.text.constraints.checker import CheckerBusy, CheckerUnavailable, ConstraintChecker
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.shapes import JsonSchema

HUNGRY: dict[str, Any] = {
    "type": "string",
    "allOf": [{"pattern": f"(a|b|c)*{chr(97 + index)}.{{{index + 5}}}"} for index in range(20)],
}
"""An intersection of regular expressions, whose automaton takes seconds and hundreds of megabytes."""


def plain(number: int = 0) -> JsonSchema:
    return JsonSchema({"const": number}, "f")


def run(work: Callable[[ConstraintChecker], Awaitable[None]], **options: float) -> None:
    async def go() -> None:
        await work(ConstraintChecker(**options))

    asyncio.run(go())


def test_a_hungry_schema_is_stopped_and_the_next_is_not_harmed() -> None:
    """A thread that compiles cannot be stopped: it would hold the memory and a core for as long as it likes."""

    async def work(checker: ConstraintChecker) -> None:
        for _ in range(2):
            with pytest.raises(ConstraintError, match=r"^f: it is too complex: to compile it (runs|takes|ended)"):
                await checker.check(JsonSchema(HUNGRY, "f"))
        assert '"const": 0' in (await checker.check(plain())).text

    run(work, seconds=0.2)


def test_a_process_that_stands_still_or_was_killed_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may stop or kill it, for which no request is at fault."""
    monkeypatch.setattr(module, "TIMEOUT", 0.2)

    async def work(checker: ConstraintChecker) -> None:
        await checker.check(plain())
        os.kill(checker.pid or 0, signal.SIGSTOP)
        with pytest.raises(CheckerUnavailable, match="did not answer in time"):
            await checker.check(plain(1))
        monkeypatch.undo()
        await checker.check(plain(1))
        os.kill(checker.pid or 0, signal.SIGKILL)
        assert processes.ends(checker.pid or 0, 10)
        assert '"const": 2' in (await checker.check(plain(2))).text

    run(work)


def test_refusals_are_of_the_constraint_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that repeats a hostile schema would keep the process from working for others."""
    asked: list[bytes] = []
    exchange = ConstraintChecker._exchange

    def counted(self: Any, process: Any, frame: bytes, shape: Any) -> Any:
        asked.append(frame)
        return exchange(self, process, frame, shape)

    monkeypatch.setattr(ConstraintChecker, "_exchange", counted)

    async def work(checker: ConstraintChecker) -> None:
        bad = JsonSchema({"not": {}}, "f")
        for _ in range(3):
            with pytest.raises(ConstraintError, match=r"^f: the keyword 'not' is not supported"):
                await checker.check(bad)
        await asyncio.gather(*[checker.check(plain()) for _ in range(5)])
        assert len(asked) == 2

    run(work)


def test_more_than_can_wait_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without end would hold the memory of every schema in it."""
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def work(checker: ConstraintChecker) -> None:
        found = await asyncio.gather(*[checker.check(plain(number)) for number in range(3)], return_exceptions=True)
        assert [type(each).__name__ for each in found] == ["Checked", "Checked", CheckerBusy.__name__]

    run(work)


def test_a_client_waits_for_few_checks_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client with many hostile grammars would make all others wait for half a minute, or get a 503."""
    monkeypatch.setattr(module, "MAX_WAITING", 8)

    async def work(checker: ConstraintChecker) -> None:
        ended: list[str] = []

        async def check(number: int, client: str) -> None:
            await checker.check(plain(number), client)
            ended.append(client)

        hostile = [asyncio.create_task(check(number, "hostile")) for number in range(8)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(check(98, "gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await check(99, "harmless")
        assert len(ended) <= 3, "it waits for the check that runs, and at most one more"
        await asyncio.gather(*hostile)

    run(work)


def test_a_large_constraint_is_refused_before_it_is_sent() -> None:
    async def work(checker: ConstraintChecker) -> None:
        with pytest.raises(ConstraintError, match=r"^f: it has \d+ bytes; at most 262144 are accepted"):
            await checker.check(JsonSchema({"enum": ["x" * 300_000]}, "f"))
        with pytest.raises(ConstraintError, match=r"^f: it is no valid Unicode"):
            await checker.check(JsonSchema({"const": "\ud800"}, "f"))
        assert checker.pid is None

    run(work)


def test_the_process_ends_with_its_checker() -> None:
    """A server that is stopped leaves no process behind."""
    pids: list[int] = []

    async def work(checker: ConstraintChecker) -> None:
        await checker.check(plain())
        pids.append(checker.pid or 0)

    run(work)
    gc.collect()
    assert processes.ends(pids[0], 10)
