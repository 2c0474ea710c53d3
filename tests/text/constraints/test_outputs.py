"""Outputs of a whole engine keep to schemas, whichever way they are computed.

A model of random weights is the best adversary: nothing but the grammar keeps its outputs to a schema.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from hypothesis import Phase, given, settings
from pydantic import BaseModel, Field

from processes import free_port
from random_checkpoint import random_checkpoint
from schemas import Schema, schemas
from serve_process import PATIENCE, announced, errors_of, server
from sluice import LLM, SamplingParams
from sluice.llm.outputs import Sample
from sluice.text.tokenizer_files import load_tokenizer

PROMPT = "The river rises"
MAX_TOKENS = 80
CLOSING = ('"', "}", "]")
"""Texts that are made likelier, as is the end, so that outputs are short."""
LIKELIER = 5.0
POOL: dict[str, Any] = {
    "max_total_tokens": 384,
    "page_size": 16,
    "chunked_prefill_size": 64,
    "max_running_requests": 40,
    "schedule_conservativeness": 0.05,
}
"""Few pages and small chunks: requests are preempted, and their outputs computed again in pieces."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, **POOL) as llm:
        yield llm


@pytest.fixture(scope="module")
def bias(folder: Path) -> dict[int, float]:
    tokenizer = load_tokenizer(folder, chat=False)
    (*closing,) = (tokenizer.encode(text, add_special_tokens=False)[0] for text in CLOSING)
    return dict.fromkeys([*closing, *tokenizer.eos_token_ids], LIKELIER)


def check(schema: Schema, samples: Sequence[Sample], max_tokens: int) -> Counter[str]:
    """Check the samples of a prompt, and count how they ended."""
    for sample in samples:
        if sample.finish_reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(sample.text))
        else:
            assert (sample.finish_reason, len(sample.token_ids)) == ("length", max_tokens), schema
    return Counter(sample.finish_reason for sample in samples)


def drawn(count: int) -> list[Schema]:
    """Return at least so many different schemas that Hypothesis draws, for one batch."""
    found: dict[str, Schema] = {}

    @settings(max_examples=2 * count, phases=[Phase.generate], database=None)
    @given(schemas())
    def draw(schema: Schema) -> None:
        found.setdefault(json.dumps(schema), schema)

    draw()
    assert len(found) >= count
    return [*found.values()][: count + 20]


def test_every_output_that_ends_is_valid(llm: LLM, bias: dict[int, float]) -> None:
    """Beside each other, overlapped, preempted, in several samples, with least and most numbers of tokens."""
    asked = drawn(90)
    params = [
        SamplingParams(
            schema=schema,
            max_tokens=MAX_TOKENS if index % 9 else 12,
            min_tokens=10 if index % 7 == 0 else 0,
            n=2 if index % 8 == 0 else 1,
            seed=index,
            temperature=1 + index % 2,
            logit_bias=bias,
        )
        for index, schema in enumerate(asked)
    ]
    ends = Counter[str]()
    results = llm.generate([f"{PROMPT} {index}" for index in range(len(asked))], params)
    for schema, result, each in zip(asked, results, params, strict=True):
        ends += check(schema, result.samples, each.max_tokens or 0)
    assert ends["stop"] > 0.8 * ends.total()
    assert ends["length"] > 0


def test_outputs_of_preempted_requests_are_valid(folder: Path) -> None:
    """One grammar for all, so that no compilation keeps requests apart and they outgrow the pages together; an engine
    of its own, since one that preempted lately reserves more."""
    schema = {"type": "string", "minLength": 60, "maxLength": 70}
    params = [SamplingParams(schema=schema, max_tokens=MAX_TOKENS, seed=seed) for seed in range(40)]
    with LLM(folder, **POOL) as llm:
        engine = llm._open_engine()
        for result in llm.generate([f"{PROMPT} {index}" for index in range(40)], params):
            check(schema, result.samples, MAX_TOKENS)
        assert engine.scheduler.state.preemptions > 0


def test_a_stream_has_the_same_output(llm: LLM) -> None:
    """Piece by piece, with tokens that the grammar forces among them."""
    schema = {"type": "object", "properties": {"first name": {"enum": ["Ann", "Bob"]}, "is_adult": {"type": "boolean"}}}
    params = SamplingParams(schema=schema | {"required": [*schema["properties"]]}, max_tokens=60, seed=3)
    (whole,) = llm.generate(PROMPT, params)
    assert "".join(piece.text for piece in llm.stream(PROMPT, params)) == whole.text
    assert set(json.loads(whole.text)) == {"first name", "is_adult"}


class Person(BaseModel):
    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=150)]


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        (SamplingParams(regex=r"\d{2}:\d{2}"), r"\d{2}:\d{2}"),
        (SamplingParams(choice=["north", "south gate"]), "north|south gate"),
        (SamplingParams(grammar='root ::= ("ab" | "cd"){1,5} "."'), r"(ab|cd){1,5}\."),
        (SamplingParams(grammar='start: WORD ("-" WORD){2}\nWORD: /[a-z]{1,3}/'), r"[a-z]{1,3}(-[a-z]{1,3}){2}"),
    ],
)
def test_every_kind_of_constraint_holds(llm: LLM, params: SamplingParams, pattern: str) -> None:
    for sample in llm.generate(PROMPT, replace(params, n=8, seed=5))[0].samples:
        assert sample.finish_reason == "stop"
        assert re.fullmatch(pattern, sample.text)


def test_a_model_of_pydantic_reads_what_it_asked_for(llm: LLM) -> None:
    (result,) = llm.generate(PROMPT, SamplingParams(schema=Person, max_tokens=100, n=8, seed=1))
    assert all(Person.model_validate_json(sample.text) for sample in result.samples)


@pytest.mark.slow
def test_an_output_stays_valid_when_its_engine_dies(folder: Path) -> None:
    """The next engine goes on in the middle of a value, where the client has its beginning already."""
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 10, "maximum": 99},
        "minItems": 40,
        "maxItems": 50,
    }
    port = free_port()
    faults = ("--enable-fault-injection", "--inject-fault", "crash@20")
    with server("-m", "sluice", "serve", str(folder), "--port", str(port), *faults) as process:
        announced(process)
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/completions",
            json={"prompt": PROMPT, "structured_outputs": {"json": schema}, "max_tokens": 400, "seed": 2},
            timeout=PATIENCE,
        )
        jsonschema.validate(json.loads(answer.json()["choices"][0]["text"]), schema)
        process.terminate()
        assert "the engine was killed by signal 9; starting another one" in errors_of(process)
