"""`SamplingParams` that constrain an output: what they accept, and the grammars that the library makes of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from sluice.llm.requests import GrammarMemo, shape_of
from sluice.text.constraints.errors import ConstraintError
from sluice.types import SamplingParams


class Person(BaseModel):
    name: str
    age: int


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_a_schema_is_an_object_a_text_or_a_model() -> None:
    assert SamplingParams(schema=SCHEMA) == SamplingParams(schema=json.dumps(SCHEMA))
    assert json.loads(SamplingParams(schema=Person).schema) == Person.model_json_schema()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schema": SCHEMA, "regex": "a"}, "schema and regex are several constraints of one output"),
        ({"schema": 5}, "schema must be a JSON schema as an object or text, or a pydantic model, got 5"),
        ({"schema": Person(name="a", age=1)}, "schema must be a JSON schema"),
        ({"schema": {"const": object()}}, "schema must be JSON: "),
        ({"choice": []}, "choice must be a non-empty list of non-empty texts, got []"),
        ({"choice": "yes"}, "choice must be a non-empty list of non-empty texts, got 'yes'"),
        ({"regex": ""}, "regex must be a regular expression, got ''"),
        ({"grammar": 5}, "grammar must be a grammar as text, got 5"),
        ({"whitespace_pattern": " "}, "whitespace_pattern ' ' is only allowed with a schema"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        SamplingParams(**given)


def test_the_engine_gets_a_grammar_and_not_what_it_is_made_of() -> None:
    """A schema would be sent to the engine twice, and kept in every trace."""
    params = SamplingParams(schema=SCHEMA, whitespace_pattern=" *")
    resolved = params.resolved(eos_ids=(), room=9, seed=0)
    assert shape_of(resolved) is None
    assert resolved.whitespace_pattern is None
    assert (
        json.loads(GrammarMemo().of(params))["grammars"][0]["json_schema"]["x-guidance"]["whitespace_pattern"] == " *"
    )


def test_every_kind_has_a_grammar_and_each_is_made_once() -> None:
    """A thousand prompts are often sent with one schema."""
    grammars = GrammarMemo()
    given: list[dict[str, Any]] = [
        {"schema": SCHEMA},
        {"regex": "a+"},
        {"choice": ["a", "b"]},
        {"grammar": "start: /a/"},
    ]
    made = [grammars.of(SamplingParams(**each)) for each in given]
    assert len({*made}) == 4
    again = [grammars.of(SamplingParams(**each)) for each in given]
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert grammars.of(SamplingParams()) == ""


def test_an_error_names_the_parameter() -> None:
    with pytest.raises(ConstraintError, match=r"^schema\.properties\.a: the keyword 'not' is not supported"):
        GrammarMemo().of(SamplingParams(schema={"properties": {"a": {"not": {}}}}))
