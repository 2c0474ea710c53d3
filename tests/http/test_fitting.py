"""Messages that a chat template refuses are fitted to it, as little as may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.http.call.fitting import plain_id, rendered
from sluice.http.call.messages import checked_messages
from sluice.text.chat_template import ChatTemplate, RenderOptions
from sluice.text.tokenizer import TemplateRefusal, Tokenizer
from tokenizer_makers import byte_tokenizer

TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
GEMMA = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
    "{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
MISTRAL = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}call {{ c.id }};{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}result {{ m.tool_call_id }}:{{ m.content }};"
    "{% elif not m.tool_calls %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
)
SHORT = (
    "{% for m in messages %}{{ m.role }};"
    "{% if loop.index > 3 %}{{ raise_exception('too long') }}{% endif %}{% endfor %}"
)
NO_TOOLS = (
    "{% for m in messages %}{{ m.role }};"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
)
AFTER_RESULTS = (
    "{% for m in messages %}{% if m.role == 'user' and not loop.first and loop.previtem.role == 'tool' %}"
    "{{ raise_exception('the assistant is next') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
ANY = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def shown(template: str, messages: list[dict[str, Any]]) -> str:
    tokenizer = Tokenizer(byte_tokenizer(), chat_template=ChatTemplate(template, {}))
    try:
        return asyncio.run(rendered(tokenizer.render_chat, checked_messages(messages), RenderOptions()))
    finally:
        tokenizer.close()


def said(*turns: str) -> list[dict[str, Any]]:
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (ONE_SYSTEM, said("s1", "d2", "u3"), "system:1\n2;user:3;"),
        (ONE_SYSTEM, said("s", "s2", "u3"), "system:2;user:3;"),
        (ONE_SYSTEM, said("u1", "u2"), "user:1;user:2;"),
        (TURNS, said("u1", "u2", "a3", "u4"), "user:1\n2;assistant:3;user:4;"),
        (TURNS, said("u1", "a2", "a3", "u4"), "user:1;assistant:2\n3;user:4;"),
        (TURNS, said("s", "u1"), "user:1;"),
        (GEMMA, said("s1", "u2"), "user:1\n\n2;"),
        (GEMMA, said("s1", "d2", "u3", "u4", "a5"), "user:1\n2\n\n3\n4;assistant:5;"),
        (GEMMA, said("s1"), "user:1;"),
        (ANY, said("u1", "u2", "s3"), "user:1;user:2;system:3;"),
        (ONE_SYSTEM, said("s1", "u2", "s3", "u4"), "system:1;user:2;user:3;user:4;"),
        (ONE_SYSTEM, said("u1", "a2", "u3", "s4"), "user:1;assistant:2;user:3;user:4;"),
        (TURNS, said("u1", "a2", "s3", "u4"), "user:1;assistant:2;user:3\n4;"),
        (TURNS, said("a1", "u2"), "user:;assistant:1;user:2;"),
        (GEMMA, said("s1", "a2", "u3"), "user:1;assistant:2;user:3;"),
        (ANY, said("a1", "u2"), "assistant:1;user:2;"),
    ],
)
def test_turns(template: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert shown(template, messages) == expected


def test_ids_of_other_servers() -> None:
    """Mistral's templates take ids of nine letters and digits; agents change models in the middle of a conversation."""
    for ids in (("call_abc", "toolu_0|x"), ("a-b-c-d-e", ""), ("Ab3456789", "Zz3456789")):
        calls = [{"id": id, "function": {"name": "f"}} for id in ids]
        results = [{"role": "tool", "tool_call_id": id, "content": id[:1]} for id in reversed(ids)]
        text = shown(MISTRAL, [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}, *results])
        one, other = (plain_id(id) if id else plain_id("call 2") for id in ids)
        first, second = ids
        assert (
            text == f"user:u;call {one};call {other};result {one}:{first[:1]};result {other}:{second[:1]};"
            or not second
        )
        assert len({one, other}) == 2
        assert (one == first) == (first == "Ab3456789")
    calls = [{"function": {"name": "f"}}] * 2
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = shown(MISTRAL, [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}, *results])
    one, other = plain_id("call 1"), plain_id("call 2")
    assert text == f"user:u;call {one};call {other};result {one}:1;result {other}:2;"


@pytest.mark.parametrize(
    ("template", "messages", "number"),
    [
        (SHORT, said("u1", "a2", "u3", "a4"), "number 4 of 4, of role assistant"),
        (NO_TOOLS, [*said("u1", "a2"), {"role": "tool", "content": "r"}, *said("u3")], "number 3 of 4, of role tool"),
    ],
)
def test_what_cannot_be_fitted_is_named(template: str, messages: list[dict[str, Any]], number: str) -> None:
    with pytest.raises(TemplateRefusal, match=number):
        shown(template, messages)


def test_what_is_said_beside_results() -> None:
    """Claude Code puts text and results into one message. With Mistral's templates its second turn failed."""
    calls = [{"id": "Ab3456789", "function": {"name": "f"}}]
    turns = [*said("u1"), {"role": "assistant", "content": "2", "tool_calls": calls}]
    results = [{"role": "tool", "tool_call_id": "Ab3456789", "content": text} for text in "34"]
    text = shown(AFTER_RESULTS, [*turns, *results, *said("u5", "u6")])
    assert text == "user:1;assistant:2;tool:3;tool:4\n\n5\n6;"
