"""Grammars of rows over a real model: what is slow, what goes no further, and what beside it goes on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import pytest

from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort
from sluice.runner.grammar.compiler import GrammarCompiler
from sluice.runner.grammar.guidance import Bits, GrammarError
from sluice.testing import ManualLink
from sluice.types import FinishReason, SamplingParams, Submit

PROMPT = tuple(range(40, 60))
DEAD_END = "dead end"
FAILS = "fails"
SLOW = "slow"
ANY = "any"
LONG_RUN = "long run"


class FakeGrammar:
    """Allows every token below 1000; slow, without an end or failing if it is called so, from the fourth token on."""

    def __init__(self, name: str, released: threading.Event) -> None:
        self.name = name
        self.released = released
        self.matchers: weakref.WeakSet[FakeMatcher] = weakref.WeakSet()

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return FakeMatcher(self)


class FakeMatcher:
    is_accepting = False
    is_complete = False

    def __init__(self, grammar: FakeGrammar) -> None:
        self._grammar = grammar
        self._consumed = 0
        self.is_broken = False
        grammar.matchers.add(self)

    def consume(self, tokens: Sequence[int]) -> None:
        self._consumed += len(tokens)

    def fill(self, bits: Bits) -> None:
        assert not self.is_broken, "it goes on after an error"
        bits[:] = 0
        is_late = self._consumed >= 3
        if is_late and self._grammar.name == SLOW:
            assert self._grammar.released.wait(60)
        if is_late and self._grammar.name == FAILS:
            raise GrammarError("a limit was reached")
        if not (is_late and self._grammar.name == DEAD_END):
            bits[:31] = -1

    def copy(self) -> FakeMatcher:
        raise AssertionError("no row has drafts")

    def forced(self) -> list[int]:
        if self._consumed >= 3 and self._grammar.name == LONG_RUN:
            self.is_broken = True
            raise GrammarError("a limit was reached")
        return []


class FakeCompile:
    def __init__(self) -> None:
        self.released = threading.Event()
        self.grammars: list[FakeGrammar] = []

    def prepare(self) -> None:
        """Return: there is no vocabulary."""

    def __call__(self, grammar: str) -> FakeGrammar:
        self.grammars.append(FakeGrammar(grammar, self.released))
        return self.grammars[-1]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    options = {"max_total_tokens": 2048, "page_size": 16, "chunked_prefill_size": 32}
    return load(EngineConfig.from_options(options), progress=False)


def engine_of(loaded: LoadedModel) -> tuple[Engine, ManualLink, FakeCompile]:
    link, compile_one = ManualLink(), FakeCompile()
    grammars = GrammarCompiler(compile_one, link.post)
    runner = loaded.runner(state=loaded.state(grammars))
    return loaded.engine(link, runner, grammars=grammars), link, compile_one


def submit(request_id: int, grammar: str = "", max_tokens: int = 8) -> Submit:
    return Submit(
        request_id,
        PROMPT,
        SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, ignore_eos=True),
        grammar=grammar,
    )


def step_until(engine: Engine, is_done: Callable[[], bool]) -> None:
    """Step, without an end: the tests' own limit of time stops what hangs."""
    while not is_done():
        engine.step()


def ended(link: ManualLink, request_id: int) -> bool:
    return any(each.request_id == request_id and each.finish_reason for each in link.outputs)


def test_a_slow_mask_keeps_no_neighbour(loaded: LoadedModel) -> None:
    """Its row has no token until it is there, and computes its last one again; the others have theirs in every step,
    with a grammar or without; and what it samples is what it would have sampled."""
    engine, link, compile_one = engine_of(loaded)
    link.put(submit(0, SLOW), submit(1, ANY, max_tokens=40), submit(2, max_tokens=40))
    step_until(engine, lambda: ended(link, 1) and ended(link, 2))
    assert len(link.tokens(0)) == 3, "it went on without a mask"
    compile_one.released.set()
    step_until(engine, lambda: ended(link, 0))
    assert link.tokens(0) == link.tokens(1)[:8]
    assert len(link.tokens(2)) == 40
    engine.close()


@pytest.mark.parametrize(("grammar", "said"), [(DEAD_END, "no token may follow"), (FAILS, "a limit was reached")])
def test_a_grammar_that_goes_no_further_ends_its_request_alone(loaded: LoadedModel, grammar: str, said: str) -> None:
    """With an error that says where; a row of -inf alone would be taken for a fault of the model."""
    engine, link, _ = engine_of(loaded)
    link.put(submit(0, grammar), submit(1, ANY))
    step_until(engine, lambda: ended(link, 0) and ended(link, 1))
    end = link.end(0)
    assert end.finish_reason is FinishReason.ERROR
    assert end.error == f"the grammar cannot go on after 3 output tokens: {said}"
    assert link.tokens(0) == link.tokens(1)[:3], "what it had was not sent"
    assert link.end(1).finish_reason is FinishReason.LENGTH
    engine.close()


def test_a_forced_run_beyond_a_limit_is_sampled(loaded: LoadedModel) -> None:
    """A long text that a schema prescribes ended its request, although each of its tokens could have been sampled."""
    engine, link, _ = engine_of(loaded)
    link.put(submit(0, LONG_RUN), submit(1, ANY))
    step_until(engine, lambda: ended(link, 0) and ended(link, 1))
    assert link.end(0).finish_reason is FinishReason.LENGTH
    assert link.tokens(0) == link.tokens(1)
    engine.close()


@pytest.mark.parametrize("is_aborted", [True, False])
def test_what_followed_a_grammar_is_released_with_its_request(loaded: LoadedModel, *, is_aborted: bool) -> None:
    """It was kept until another request had the slot, which on a server at rest is for ever."""
    engine, link, compile_one = engine_of(loaded)
    link.put(submit(0, ANY, max_tokens=40))
    step_until(engine, lambda: len(link.tokens(0)) >= 3)
    (grammar,) = compile_one.grammars
    (matcher,) = grammar.matchers
    is_released = threading.Event()
    weakref.finalize(matcher, is_released.set)
    del matcher
    if is_aborted:
        link.put(Abort(0))
    step_until(engine, lambda: ended(link, 0) and engine.is_idle)
    assert is_released.wait(60)
    engine.close()


def test_a_resumed_request_goes_on_in_its_place(loaded: LoadedModel) -> None:
    """An engine that takes over a request makes its matcher anew, from the tokens that were sent."""
    engine, link, _ = engine_of(loaded)
    sampling = submit(0).sampling
    link.put(Submit(0, PROMPT, sampling, grammar=DEAD_END, output_ids=(50, 51), is_resumed=True))
    step_until(engine, lambda: ended(link, 0))
    assert link.end(0).error == "the grammar cannot go on after 3 output tokens: no token may follow"
    engine.close()


def test_steps_without_a_grammar_do_no_work_for_one(loaded: LoadedModel) -> None:
    """Rows of the slots that had one before do not count."""
    engine, link, _ = engine_of(loaded)
    link.put(submit(0, ANY, max_tokens=2))
    step_until(engine, lambda: ended(link, 0))
    link.put(submit(1, max_tokens=2))
    masked: list[object] = []
    loaded.logit_ops.mask, before = lambda *given: masked.append(given), loaded.logit_ops.mask  # type: ignore[method-assign,assignment]
    step_until(engine, lambda: ended(link, 1))
    loaded.logit_ops.mask = before  # type: ignore[method-assign]
    assert masked == []
    engine.close()
