"""Compiling on threads: what is compiled once, what is kept, and what takes too long."""

from __future__ import annotations

import queue
import threading

from sluice.engine.clock import Clock, VirtualClock
from sluice.engine.messages import Compiled
from sluice.runner.grammar.base import CompiledGrammar
from sluice.runner.grammar.compiler import GrammarCompiler
from sluice.runner.grammar.guidance import GrammarError, GuidanceMatcher


class Grammar:
    def matcher(self, *, may_force: bool = True) -> GuidanceMatcher:
        raise AssertionError("no test follows it")


class Compile:
    """Compiles at once; `slow` ones when they are released."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.released = threading.Event()

    def prepare(self) -> None:
        raise ValueError("no tokenizer")

    def __call__(self, grammar: str) -> CompiledGrammar:
        if grammar.startswith("slow"):
            assert self.released.wait(60)
        if grammar == "bad":
            raise GrammarError("it is bad")
        if grammar == "bug":
            raise RuntimeError("a bug")
        self.compiled.append(grammar)
        return Grammar()


class Rig:
    def __init__(self, *, max_seconds: float = 60.0, max_kept: int = 256, clock: Clock | None = None) -> None:
        self.compile = Compile()
        self.posted: queue.SimpleQueue[Compiled] = queue.SimpleQueue()
        self.compiler = GrammarCompiler(
            self.compile, self.posted.put, max_seconds=max_seconds, max_kept=max_kept, max_threads=2, clock=clock
        )

    def result(self, request_id: int, grammar: str) -> Compiled:
        """Ask for a grammar and wait for what comes of it."""
        return self.compiler.compile(request_id, grammar) or self.posted.get(timeout=60)


def test_equal_grammars_are_compiled_once() -> None:
    """And the second request need not wait for a message."""
    rig = Rig()
    assert rig.result(1, "a") == Compiled(1)
    assert rig.compiler.compile(2, "a") == Compiled(2)
    assert rig.compile.compiled == ["a"]
    assert rig.compiler.find(1) is rig.compiler.find(2)
    totals = rig.compiler.totals()
    assert (totals.hits, totals.misses) == (1, 1)


def test_requests_that_wait_for_one_grammar_are_all_told() -> None:
    """One that is forgotten would wait for ever; one that has ended is not told."""
    rig = Rig()
    assert [rig.compiler.compile(each, "slow") for each in (1, 2, 3)] == [None, None, None]
    rig.compiler.forget([2])
    rig.compile.released.set()
    assert {rig.posted.get(timeout=60).request_id for _ in range(2)} == {1, 3}
    assert rig.posted.empty()


def test_what_is_wrong_is_told_to_each() -> None:
    """Without compiling it again; and an error of ours is no end of the thread."""
    rig = Rig()
    assert rig.result(1, "bad") == Compiled(1, "it is bad")
    assert rig.compiler.compile(2, "bad") == Compiled(2, "it is bad")
    found = rig.result(3, "bug")
    assert found.error is not None
    assert "a bug" in found.error
    assert rig.result(4, "a") == Compiled(4)
    assert rig.compiler.totals().failed == 2


def test_a_grammar_that_takes_too_long_keeps_no_other() -> None:
    """As many of them as there are threads would stop all that come later."""
    rig = Rig(max_seconds=0.01)
    for request_id in (1, 2, 3):
        assert rig.compiler.compile(request_id, f"slow {request_id}") is None
    late = [rig.posted.get(timeout=60) for _ in range(3)]
    assert {each.request_id for each in late} == {1, 2, 3}
    assert all(each.error == "the grammar was not compiled within 0.01 seconds" for each in late)
    rig.compile.released.set()


def test_a_queue_that_moves_may_take_long() -> None:
    """Thousands of grammars that come at once were refused together when their sum took too long."""
    clock = VirtualClock()
    rig = Rig(clock=clock)
    for request_id, grammar in enumerate(("slow 1", "slow 2", "later")):
        assert rig.compiler.compile(request_id, grammar) is None
    clock.advance(60)
    rig.compile.released.set()
    told = {each.request_id: each.error for each in (rig.posted.get(timeout=60) for _ in range(3))}
    assert told == {0: None, 1: None, 2: None}


class LateInTimers(VirtualClock):
    """It is a second later where a timer asks."""

    def now(self) -> float:
        return super().now() + isinstance(threading.current_thread(), threading.Timer)


def test_a_queue_that_stands_still_is_refused() -> None:
    """A request behind grammars that take too long waited for them, and then for its own time."""
    rig = Rig(max_seconds=0.01, clock=LateInTimers())
    for request_id, grammar in enumerate(("slow 1", "slow 2", "late")):
        assert rig.compiler.compile(request_id, grammar) is None
    told = {each.request_id: each.error for each in (rig.posted.get(timeout=60) for _ in range(3))}
    assert set(told.values()) == {"the grammar was not compiled within 0.01 seconds"}
    assert "late" not in rig.compile.compiled
    rig.compile.released.set()
    assert rig.result(3, "late") == Compiled(3), "it is compiled for who comes later"


def test_what_no_request_waits_for_is_not_compiled() -> None:
    """Clients that send grammars and go away would keep the threads busy, and others waiting."""
    rig = Rig()
    for request_id, grammar in enumerate(("slow 1", "slow 2", "left", "left", "shared", "shared")):
        assert rig.compiler.compile(request_id, grammar) is None
    rig.compiler.forget([2, 3, 4])
    rig.compile.released.set()
    assert {rig.posted.get(timeout=60).request_id for _ in range(3)} == {0, 1, 5}
    assert "left" not in rig.compile.compiled
    assert rig.result(6, "left") == Compiled(6)


def test_grammars_of_open_requests_are_kept() -> None:
    """One that is dropped could not be followed after a preemption. Of the others, the latest used stay."""
    rig = Rig(max_kept=2)
    rig.result(1, "open")
    for request_id, grammar in enumerate(("a", "b", "c", "d"), start=2):
        rig.result(request_id, grammar)
        rig.compiler.forget([request_id])
    assert rig.compiler.find(1) is not None
    assert rig.compiler.totals().evicted == 2
    assert rig.compiler.compile(8, "open") == Compiled(8)
    assert rig.compiler.compile(9, "d") == Compiled(9)
    assert rig.compiler.compile(10, "a") is None


def test_without_a_tokenizer_the_engine_starts() -> None:
    """It serves requests without a grammar."""
    Rig().compiler.prepare()
