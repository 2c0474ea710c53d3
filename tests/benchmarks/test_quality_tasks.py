"""The tasks that a model's answers are judged by, and the judgement."""

from __future__ import annotations

import json
from collections import Counter

import jsonschema
import pytest

from benchmarks.quality_tasks import Task, called, judged, tasks

CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}


def test_every_expected_value_fits_its_schema() -> None:
    """Otherwise no answer could be right."""
    found = tasks()
    for task in found:
        jsonschema.validate(task.expected, task.schema)
    assert {*Counter(task.kind for task in found).values()} == {40, 30}


def task(schema: object, expected: dict[str, object]) -> Task:
    return Task("JSON", {}, {"type": "object", "properties": {"city": schema}, "required": ["city"]}, expected)


@pytest.mark.parametrize(
    ("text", "judgement"),
    [
        ('{"city": "Oslo"}', (True, True)),
        ('{ "city": " OSLO" }', (True, True)),
        ('{"city": "Rome"}', (True, False)),
        ('{"city": 3}', (False, False)),
        ('{"city": "Oslo"', (False, False)),
        ("", (False, False)),
    ],
)
def test_an_answer_is_valid_and_right(text: str, judgement: tuple[bool, bool]) -> None:
    assert judged(task({"type": "string"}, {"city": "Oslo"}), text) == judgement


@pytest.mark.parametrize("shape", ["{}", "<tool_call>\n{}\n</tool_call>", "Yes: <tool_call>\n{}"])
def test_a_call_is_what_stands_between_the_tags(shape: str) -> None:
    assert json.loads(called(shape.format(json.dumps(CALL)) if shape != "{}" else json.dumps(CALL))) == CALL
