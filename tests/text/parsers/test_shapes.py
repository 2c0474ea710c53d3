"""What a format's shape allows, its parser reads: checked with the library that the engine constrains answers by."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from drawn_tools import drawn_tool_set
from sluice.text.constraints.grammars import grammar_of
from sluice.text.constraints.shapes import JsonSchema
from sluice.text.parsers.events import Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Choice, Tool, ToolUse
from tokenizer_makers import byte_tokenizer

WEATHER = Tool(
    "weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Ulm", "Köln"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "note": {"type": "string"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
NOW = Tool("now")
USE = ToolUse((WEATHER, NOW), Choice.REQUIRED)
MARKERS = sorted({marker for format in FORMATS.values() for marker in format.markers} | {"<think>", "</think>"})
ENDS = [
    "</arg_value>",
    '<|"|>',
    "<|end|>",
    "\n</parameter>\n",
    "</parameter>\n",
    "</\uff5cDSML\uff5cparameter>\n",
    *(format.end for format in REASONING_FORMATS.values()),
]
"""What free text ends with."""
CLOSING = frozenset(b'"}]\n<')
WINDS_UP, LONGEST = 0.2, 12_000


@cache
def tokenizer(*, marked: bool) -> tokenizers.Tokenizer:
    """A tokenizer of bytes, whose markers are tokens, or only texts."""
    return byte_tokenizer(["<end>", *(MARKERS if marked else ())])


@cache
def vocabulary_of(made_by: tokenizers.Tokenizer) -> LLTokenizer:
    return LLTokenizer(made_by.to_str(), eos_token=made_by.token_to_id("<end>"))


def sampled(grammar: str, made_by: tokenizers.Tokenizer, seed: int) -> str:
    """Return a random text that a grammar allows, preferring its structure to long texts."""
    vocabulary = vocabulary_of(made_by)
    matcher = LLMatcher(vocabulary, grammar)
    assert not matcher.get_error()
    draw, bits = random.Random(seed), allocate_token_bitmask(1, vocabulary.vocab_size)
    ids: list[int] = []
    end = made_by.token_to_id("<end>")
    while not matcher.is_stopped() and len(ids) < LONGEST:
        if draw.random() < WINDS_UP:  # free text ends with one of these alone
            for mark in draw.sample(ENDS, len(ENDS)):
                tokens = made_by.encode(mark, add_special_tokens=False).ids
                if matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens):
                    ids += tokens
                    break
        fill_next_token_bitmask(matcher, bits, 0)
        allowed: list[int] = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        closing = [each for each in allowed if each == end or each > 255 or each in CLOSING]
        few = closing if closing and draw.random() < 0.4 else allowed
        token = draw.choice(few)
        if token == end:
            break
        assert matcher.consume_token(token), matcher.get_error()
        ids.append(token)
    assert len(ids) < LONGEST
    return _text(ids, made_by)


def _text(ids: list[int], made_by: tokenizers.Tokenizer) -> str:
    parts = (made_by.id_to_token(each).encode() if each > 255 else bytes([each]) for each in ids)
    return b"".join(parts).decode(errors="replace")


def parsed(format: ReplyFormat, use: ToolUse, text: str, prompt: str = "") -> Reply:
    numbers = itertools.count()
    parser = format.parser(use, prompt, new_id=lambda: str(next(numbers)))
    return whole_of([*parser.push(text), *parser.finish()])


def check(reply: Reply, *, allowed: ToolUse) -> None:
    assert reply.calls
    assert not reply.text
    for call in reply.calls:
        assert call.is_complete
        arguments: dict[str, Any] = json.loads(call.arguments)
        if call.name == "now":
            assert arguments == {}
        else:
            assert arguments["city"] in ("Ulm", "Köln")
            assert arguments["days"] in range(1, 15)
            assert arguments.keys() <= {"city", "days", "note"}
    assert {call.name for call in reply.calls} <= {tool.name for tool in allowed.callable}


@pytest.mark.parametrize("seeds", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "marked"), [(name, marked) for name in FORMATS for marked in (True, False) if marked or name != "openai"]
)
def test_what_is_allowed_is_read(name: str, marked: bool, seeds: int) -> None:
    """A call that was forced would come back as text, or with arguments that the schema forbids."""
    made_by = tokenizer(marked=marked)
    format = ReplyFormat(FORMATS[name])
    for use in (USE, ToolUse(USE.tools, Choice.REQUIRED, "weather"), ToolUse(USE.tools, Choice.REQUIRED, None, False)):
        shape = format.shape(use, "", None, made_by.token_to_id if marked else lambda _: None)
        assert shape is not None
        grammar = grammar_of(shape)
        for seed in range(seeds):
            text = sampled(grammar, made_by, seed)
            reply = parsed(format, use, text)
            check(reply, allowed=use)
            assert len(reply.calls) == 1 or use is USE, text


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "openai"])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_model_may_stop_behind_a_line_break(name: str, is_parallel: bool) -> None:
    """A model that wrote one behind its call, as its template does, had to call again until there was no room."""
    made_by, format = tokenizer(marked=True), ReplyFormat(FORMATS[name])
    shape = format.shape(ToolUse((NOW,), Choice.REQUIRED, None, is_parallel), "", None, made_by.token_to_id)
    assert shape is not None
    grammar = grammar_of(shape)
    matcher = LLMatcher(LLTokenizer(made_by.to_str(), eos_token=256), grammar)
    call = sampled(grammar, made_by, 1).strip()
    ids = made_by.encode(call + "\n", add_special_tokens=False).ids
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize("name", REASONING_FORMATS)
@pytest.mark.parametrize("tag", ["begin", "end", ""])
def test_reasoning_is_free(name: str, tag: str) -> None:
    """A model that reasons would have to write a call as its first thought, or thoughts would be parsed as calls."""
    reasoning = REASONING_FORMATS[name]
    format, made_by = ReplyFormat(FORMATS["hermes"], reasoning), tokenizer(marked=True)
    prompt = {"begin": reasoning.begin, "end": reasoning.end, "": "assistant"}[tag]
    shape = format.shape(USE, f"{prompt}\n", None, made_by.token_to_id)
    assert shape is not None
    grammar = grammar_of(shape)
    for seed in range(6):
        text = sampled(grammar, made_by, seed)
        reply = parsed(format, USE, text, f"{prompt}\n")
        check(reply, allowed=USE)
        assert not (reply.reasoning and tag == "end")
        assert reasoning.end in text or tag != "begin"


def test_strict_tools_are_held_where_the_model_may_choose() -> None:
    """`strict` would promise arguments by the schema, and hold nobody to it; text must stay free."""
    made_by = tokenizer(marked=True)
    strict = Tool("weather", parameters=WEATHER.parameters, strict=True)
    use = ToolUse((strict, NOW))
    for name in FORMATS:
        shape = ReplyFormat(FORMATS[name]).shape(use, "", None, made_by.token_to_id)
        if name in ("llama3_json", "llama4_pythonic", "json", "openai"):
            assert shape is None
            continue
        assert shape is not None
        matcher = LLMatcher(LLTokenizer(made_by.to_str(), eos_token=256), grammar_of(shape))
        free = made_by.encode("It rains.", add_special_tokens=False).ids
        assert matcher.try_consume_tokens(free) == len(free)
        assert matcher.is_accepting()


def test_nothing_is_asked_for_where_nothing_has_to_be() -> None:
    """Every request with tools would pay for a mask."""
    for use in (ToolUse(), ToolUse(USE.tools), ToolUse(USE.tools, Choice.NONE)):
        for format in FORMATS.values():
            assert ReplyFormat(format, REASONING_FORMATS["qwen3"]).shape(use, "", None, lambda _: None) is None


def test_an_answer_of_a_form_comes_behind_the_reasoning() -> None:
    """JSON was forced from the first token, so that a reasoning model could not think."""
    made_by = tokenizer(marked=True)
    answer = JsonSchema({"enum": [1]})
    for format, text, expected in (
        (ReplyFormat(None, REASONING_FORMATS["qwen3"]), "<think>Hm.</think>\n\n1", Reply("1", "Hm.")),
        (ReplyFormat(None, REASONING_FORMATS["qwen3"]), "1", Reply("1")),
        (ReplyFormat(FORMATS["openai"]), "<|channel|>final<|message|>1", Reply("1")),
    ):
        shape = format.shape(ToolUse(), "", answer, made_by.token_to_id)
        assert shape is not None
        matcher = LLMatcher(LLTokenizer(made_by.to_str(), eos_token=256), grammar_of(shape))
        ids = made_by.encode(text, add_special_tokens=False).ids
        assert matcher.try_consume_tokens(ids) == len(ids)
        assert matcher.is_accepting()
        assert parsed(format, ToolUse(), text) == expected


OPTIONAL = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "enum": ["x", "y"]}, "c": {"type": "boolean"}},
    "required": ["b"],
    "additionalProperties": {"type": "null"},
}


@pytest.mark.parametrize(
    ("name", "text", "is_allowed"),
    [
        ("llama4_pythonic", '[f(b="x")]', True),
        ("llama4_pythonic", '[f(a=1, b="x", c=true, d=null, e=null)]', True),
        ("llama4_pythonic", '[f(b="x", d=null)]', True),
        ("llama4_pythonic", "[f()]", False),
        ("llama4_pythonic", '[f(a=1, b="z")]', False),
        ("llama4_pythonic", '[f(, b="x")]', False),
        ("llama4_pythonic", '[f(a=1b="x")]', False),
        ("llama4_pythonic", '[f(b="x", )]', False),
        ("llama4_pythonic", '[f(b="x", a=1)]', False),
        ("llama4_pythonic", '[f(b="x", d=1)]', False),
        ("gemma4", '<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>', True),
        ("gemma4", '<|tool_call>call:f{b:<|"|>y<|"|>,c:false,d:null}<tool_call|>', True),
        ("gemma4", '<|tool_call>call:f{b:"y"}<tool_call|>', False),
        ("gemma4", '<|tool_call>call:f{b:<|"|>z<|"|>}<tool_call|>', False),
        ("olmo3", '<function_calls>f(b="x")\nf(a=2, b="y")</function_calls>', True),
        ("phi4_mini", 'functools[{"name": "f", "arguments": {"b": "x"}}]', True),
    ],
)
def test_arguments_that_may_be_left_out(name: str, text: str, is_allowed: bool) -> None:
    """A comma stands between each two of those that are there, and nowhere else."""
    made_by = tokenizer(marked=True)
    shape = ReplyFormat(FORMATS[name]).shape(
        ToolUse((Tool("f", parameters=OPTIONAL),), Choice.REQUIRED), "", None, made_by.token_to_id
    )
    assert shape is not None
    matcher = LLMatcher(LLTokenizer(made_by.to_str(), eos_token=256), grammar_of(shape))
    ids = made_by.encode(text, add_special_tokens=False).ids
    assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == is_allowed


SETS, EACH = 20, 10
"""Sets of tools, and answers for each."""


@pytest.mark.parametrize("sets", [1, pytest.param(SETS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_random_model_calls_drawn_tools(name: str, sets: int) -> None:
    """A model that knows nothing must still write calls that fit the schemas, whatever these have."""
    made_by, format = tokenizer(marked=True), ReplyFormat(FORMATS[name])
    for seed in range(sets):
        use = ToolUse(drawn_tool_set(seed, ()).tools, Choice.REQUIRED)
        shape = format.shape(use, "", None, made_by.token_to_id)
        assert shape is not None
        grammar = grammar_of(shape)
        schemas = {tool.name: tool.schema for tool in use.tools}
        for each in range(EACH):
            text = sampled(grammar, made_by, each)
            reply = parsed(format, use, text)
            assert reply.calls
            assert not reply.text.strip()
            for call in reply.calls:
                assert call.is_complete, text
                jsonschema.validate(json.loads(call.arguments), dict(schemas[call.name]))
