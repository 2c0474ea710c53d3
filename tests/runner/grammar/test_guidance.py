"""Grammars by llguidance: masks over a model's vocabulary, and what cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from llguidance import LLMatcher

from any_checkpoint import any_checkpoint
from sluice.runner.constrained_row import ConstrainedRow
from sluice.runner.grammar.guidance import END, MAX_BYTES, GrammarError, Guidance
from sluice.testing import resolved
from sluice.text.tokenizer_files import load_tokenizer
from sluice.types import NewSlot, Submit

TOKENIZER = load_tokenizer(any_checkpoint(), chat=False)
SIZE = TOKENIZER.vocab_size


def guidance(vocab_size: int = SIZE) -> Guidance:
    return Guidance(lambda: load_tokenizer(any_checkpoint(), chat=False).serialized(END), vocab_size)


def allowed(grammar: str, tokens: list[int], vocab_size: int = SIZE) -> set[int]:
    """The tokens that may follow."""
    matcher = guidance(vocab_size)(grammar).matcher()
    matcher.consume(tokens)
    bits = np.full(-(-vocab_size // 32), -1, dtype=np.int32)
    matcher.fill(bits)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("vocab_size", [SIZE, SIZE - 17, SIZE + 1, SIZE + 64, SIZE + 999])
def test_no_id_beyond_the_tokenizer_or_the_model_is_allowed(vocab_size: int) -> None:
    """A model's vocabulary is often padded: its ids without text, or with that of the end of a grammar, must not be
    sampled, and a model's smaller vocabulary must not be exceeded."""
    anything = allowed("start: /(.|\\n)*/", [], vocab_size)
    assert len(anything) > SIZE // 2
    assert max(anything) < min(SIZE, vocab_size)


def test_special_tokens_are_no_text() -> None:
    """A string in JSON that ends with the token of the end of a turn would end the answer within it."""
    anything = allowed("start: /(.|\\n)*/", [])
    assert not any(TOKENIZER.is_special(token) for token in anything)


def test_what_must_follow_is_known() -> None:
    """Forced tokens are those of the text that alone matches, and none where the grammar has a choice."""
    matcher = guidance()(LLMatcher.grammar_from_lark('start: "one way " ("left" | "right")')).matcher()
    assert TOKENIZER.decode(matcher.forced()).strip() == "one way"
    matcher.consume(TOKENIZER.encode("one way left", add_special_tokens=False))
    assert matcher.is_complete


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: /[ab/", "unclosed character class"),
        ("start: missing", "missing"),
        ('{"grammars": [{"json_schema": {"type": "objet"}}]}', "objet"),
        ("{", "."),
        ("start: " + "x" * MAX_BYTES, f"at most {MAX_BYTES} are accepted"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_fault(grammar: str, message: str) -> None:
    """A grammar that fails later, or without a word, would fail a request that could have been refused."""
    with pytest.raises(GrammarError, match=message):
        guidance()(grammar)


LONG_RUN = r"""start: x{2000}
x: y
y: z
z: "7" | "7" "7"
"""
"""Ambiguous at each character, though all of them are the same."""


@pytest.mark.parametrize("grammar", [LONG_RUN, json.dumps({"grammars": [{"lark_grammar": LONG_RUN}]})])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_run_that_is_too_long_to_be_forced_is_sampled(grammar: str, logprobs: int | None) -> None:
    """The library bounds the work for all of a forced run, and the request ended there with an error."""
    (seven,) = TOKENIZER.encode("7", add_special_tokens=False)
    sampling = replace(resolved(99), logprobs=logprobs)
    row = ConstrainedRow(NewSlot(0, Submit(0, (), sampling)), guidance()(grammar), SIZE)
    brought: list[int] = []
    while len(brought) < 99:
        row.compute()
        brought += row.advance((seven,))
        assert row.problem is None
    assert set(TOKENIZER.decode(brought)) == {"7"}


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('%llguidance {"allow_initial_skip": true}\nstart: "one"\n%ignore / /', " one"),
        (
            json.dumps(
                {
                    "grammars": [
                        {"json_schema": {"const": 1}},
                        {"name": "answer", "lark_grammar": 'start: "other"'},
                    ]
                }
            ),
            "1",
        ),
    ],
)
def test_a_grammar_without_forcing_accepts_the_same(grammar: str, text: str) -> None:
    """Options of the grammar's own were lost, and a part of the user's could have the name of the one that is added."""
    for may_force in (True, False):
        matcher = guidance()(grammar).matcher(may_force=may_force)
        matcher.consume(TOKENIZER.encode(text, add_special_tokens=False))
        assert matcher.is_accepting
    assert not guidance()(grammar).matcher(may_force=False).forced()


def test_a_copy_goes_on_by_itself() -> None:
    """One that moved the matcher it was taken from would let a wrong draft into the output."""
    matcher = guidance()('start: "a" ("bc" | "d")').matcher()
    a, b, d = (TOKENIZER.encode(text, add_special_tokens=False) for text in "abd")
    matcher.consume(a)
    copy = matcher.copy()
    copy.consume(b)
    assert copy.forced() == TOKENIZER.encode("c", add_special_tokens=False)
    with pytest.raises(GrammarError):
        copy.consume(d)
    matcher.consume(d)
    assert matcher.is_complete


def test_tokens_that_do_not_match_are_an_error() -> None:
    """A matcher that goes on after a wrong token would let anything follow."""
    matcher = guidance()('start: "a" "b"').matcher()
    with pytest.raises(GrammarError):
        matcher.consume(TOKENIZER.encode("x", add_special_tokens=False))
