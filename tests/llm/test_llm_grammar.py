"""Outputs that follow a grammar, with a random model in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher

from any_checkpoint import any_checkpoint
from sluice import LLM, SamplingParams
from sluice.llm.outputs import GenerationError
from sluice.llm.runs import LocalRequest
from sluice.types import Submit

PERSON = LLMatcher.grammar_from_json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    overrides={"whitespace_flexible": False},  # a small model writes spaces for ever
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        any_checkpoint(), max_total_tokens=4096, chunked_prefill_size=32, page_size=16, max_running_requests=8
    ) as llm:
        yield llm


def generate(llm: LLM, grammars: list[str], params: SamplingParams, **options: Any) -> list[LocalRequest]:
    """Run a request for each grammar, together."""
    runs = []
    for index, grammar in enumerate(grammars):
        for submit in llm._requests.generated(index, "Tell me about a cat. " * 5, params, "", 0):
            given: Submit = replace(submit, grammar=grammar, **options)
            runs.append(llm._run(given, params))
    llm._link.submit(*runs)
    while not all(run.is_done for run in runs):
        llm._step()
    llm._link.forget(*runs)
    return runs


def text_of(run: LocalRequest) -> str:
    return run.sample().text


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_every_answer_fits_its_schema(llm: LLM, temperature: float) -> None:
    """However unlikely the model finds it; and requests without a grammar beside it are free."""
    params = SamplingParams(max_tokens=140, temperature=temperature, seed=1, n=3)
    *constrained, free = generate(llm, [PERSON, PERSON, ""], params)
    for run in constrained[:-2]:
        found = json.loads(text_of(run))
        assert set(found) == {"name", "age", "tags"}
        assert 0 <= found["age"] <= 120
        assert run.sample().finish_reason == "stop"
    assert not text_of(free).startswith("{")


def test_an_answer_that_is_cut_says_so(llm: LLM) -> None:
    """An unfinished JSON text that ends with "stop" would be parsed."""
    (run,) = generate(llm, [PERSON], SamplingParams(max_tokens=3, temperature=0))
    assert run.sample().finish_reason == "length"
    assert len(run.sample().token_ids) == 3


def test_what_the_last_token_completes_is_not_cut(llm: LLM) -> None:
    """An answer whose last token is also the last that it may have is whole."""
    (whole,) = generate(llm, [PERSON], SamplingParams(max_tokens=200, temperature=0))
    count = len(whole.sample().token_ids)
    (run,) = generate(llm, [PERSON], SamplingParams(max_tokens=count, temperature=0))
    assert run.sample() == whole.sample()
    assert run.sample().finish_reason == "stop"


def test_each_stop_token_ends_an_answer_where_the_grammar_accepts(llm: LLM) -> None:
    """A model with two ends of a turn must be able to use either, and neither before the grammar accepts."""
    letter = llm._requests._tokenizer
    assert letter is not None
    (stop,) = letter.encode("z", add_special_tokens=False)
    sampling = SamplingParams(
        max_tokens=30, temperature=0, stop_token_ids=(stop,), logit_bias=((stop, 100.0),), ignore_eos=True
    )
    (run,) = generate(llm, ["start: /[ab]{3,20}/"], sampling)
    assert re.fullmatch("[ab]{3}[ab]*", text_of(run)), text_of(run)
    assert run.sample().token_ids[-1] == stop
    assert run.sample().finish_reason == "stop"


def test_min_tokens_puts_the_end_off_as_far_as_the_grammar_goes(llm: LLM) -> None:
    """Stop tokens are excluded before `min_tokens`, but a grammar that allows nothing else ends the answer: the
    alternative is a row without any token, which is an error."""
    ends = SamplingParams(max_tokens=30, min_tokens=12, temperature=0)
    long, short = generate(llm, ["start: /a*/", 'start: "ab"'], ends)
    assert len(long.sample().token_ids) >= 12
    assert (text_of(short), short.sample().finish_reason) == ("ab", "stop")


def test_ignore_eos_ends_with_the_grammar(llm: LLM) -> None:
    """Where the grammar accepts and may go on it goes on; where it is complete nothing can follow."""
    go_on, complete = generate(
        llm, ["start: /a*/", "start: /a{5}/"], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    )
    assert go_on.sample().finish_reason == "length"
    assert (text_of(complete), complete.sample().finish_reason) == ("aaaaa", "stop")


def test_log_probabilities_are_those_of_the_raw_logits(llm: LLM) -> None:
    """They are documented as the model's own, before anything is excluded."""
    params = SamplingParams(max_tokens=20, temperature=0, logprobs=2)
    (run,) = generate(llm, [PERSON], params)
    logprobs = run.sample().logprobs
    assert logprobs is not None
    first = logprobs[0]
    assert llm._requests._tokenizer is not None
    assert llm._requests._tokenizer.decode([first.token_id]).strip() == "{"
    assert first.top[0][0] != first.token_id, "the model itself would not begin with a brace"
    assert all(item.logprob > float("-inf") for item in logprobs)


@pytest.mark.parametrize("grammar", ["start: /[ab/", 'start: "a" missing'])
def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone(llm: LLM, grammar: str) -> None:
    """The error names the fault, and the others go on."""
    bad, good = generate(llm, [grammar, PERSON], SamplingParams(max_tokens=100, temperature=0))
    with pytest.raises(GenerationError, match=r"unclosed|missing"):
        bad.sample()
    json.loads(text_of(good))
