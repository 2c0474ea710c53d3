"""Answers of models in each format of calls, read whole and in pieces."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.text.parsers.calls import Calls
from sluice.text.parsers.events import ArgumentsDelta, Call, CallBegun, CallEnded, Event, Reply, TextDelta, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.parsing import Source
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Choice, Tool, ToolUse

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}, "any": {}},
}
USE = ToolUse((Tool("weather", parameters=SCHEMA), Tool("now")))
CITY, DAYS = '{"city": "Ul\\"m {"}', '{"days": 3}'
DS = "<\uff5ctool\u2581{}\uff5c>".format
CALLS_BEGIN, CALLS_END, BEGIN, END, SEP = map(
    DS, ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)
DSML = "\uff5cDSML\uff5c"
TWO_CALLS = {
    "hermes": (
        f'<tool_call>\n{{"name": "weather", "arguments": {CITY}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "weather", "arguments": {DAYS}}}\n</tool_call>'
    ),
    "llama3_json": (
        f'<|python_tag|>{{"name": "weather", "parameters": {CITY}}}; {{"name": "weather", "parameters": {DAYS}}}'
    ),
    "mistral": f"[TOOL_CALLS]weather[ARGS]{CITY}[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{DAYS}",
    "qwen3_coder": (
        '<tool_call>\n<function=weather>\n<parameter=city>\nUl"m {\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "seed_oss": (
        '<seed:tool_call>\n<function=weather>\n<parameter=city>Ul"m {</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=weather>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
    ),
    "glm45": (
        '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ul"m {</arg_value>\n</tool_call>\n'
        "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "glm47": (
        '<tool_call>weather<arg_key>city</arg_key><arg_value>Ul"m {</arg_value></tool_call>'
        "<tool_call>weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Ul"m {</parameter>\n</invoke>\n'
        '<invoke name="weather">\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    **{
        name: (
            f'<{DSML}{section}>\n<{DSML}invoke name="weather">\n'
            f'<{DSML}parameter name="city" string="true">Ul"m {{</{DSML}parameter>\n</{DSML}invoke>\n'
            f'<{DSML}invoke name="weather">\n'
            f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}{section}>'
        )
        for name, section in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    },
    "deepseek_v3": (
        f"{CALLS_BEGIN}{BEGIN}function{SEP}weather\n```json\n{CITY}\n```{END}\n"
        f"{BEGIN}function{SEP}weather\n```json\n{DAYS}\n```{END}{CALLS_END}"
    ),
    "deepseek_v31": f"{CALLS_BEGIN}{BEGIN}weather{SEP}{CITY}{END}{BEGIN}weather{SEP}{DAYS}{END}{CALLS_END}",
    "kimi_k2": (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{CITY}"
        f"<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{DAYS}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "openai": (
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{CITY}<|call|>"
        f"<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{DAYS}<|call|>"
    ),
    "gemma4": (
        '<|tool_call>call:weather{city:<|"|>Ul"m {<|"|>}<tool_call|><|tool_call>call:weather{days:3}<tool_call|>'
    ),
    "llama4_pythonic": r'[weather(city="Ul\"m {"), weather(days=3)]',
    "lfm2": "<|tool_call_start|>[weather(city='Ul\"m {'), weather(days=3)]<|tool_call_end|>",
    "olmo3": '<function_calls>weather(city="Ul\\"m {")\nweather(days=3)</function_calls>',
    **{
        name: f'{begin}[{{"name": "weather", "arguments": {CITY}}}, {{"name": "weather", "arguments": {DAYS}}}]{end}'
        for name, begin, end in (
            ("json", "", ""),
            ("phi4_mini", "functools", ""),
            ("granite", "<|tool_call|>", ""),
            ("nemotron_v2", "<TOOLCALL>", "</TOOLCALL>"),
            ("apriel", "<tool_calls>", "</tool_calls>"),
        )
    },
}
"""The same two calls in each format."""
TAGGED = {
    "qwen3_coder": ">\n3\n</parameter>",
    "seed_oss": ">3</parameter>",
    "minimax_m2": ">3</parameter>",
    "deepseek_v32": f">3</{DSML}parameter>",
    "deepseek_v4": f">3</{DSML}parameter>",
    "glm45": ">3</arg_value>",
    "glm47": ">3</arg_value>",
}
"""Formats whose values are texts in tags -> the value 3 in its tags."""
LITERAL = ("gemma4", "llama4_pythonic", "lfm2", "olmo3")
"""Formats whose names stand without quotes."""
MARKED = [name for name in FORMATS if FORMATS[name].markers]
"""Formats in which text may precede a call."""


def parsed(name: str | None, text: str, cuts: list[int] | None = None, *, reasoning: str | None = None) -> list[Event]:
    """Return the events of an answer that arrives in pieces."""
    numbers = itertools.count()
    format = ReplyFormat(
        None if name is None else FORMATS[name], None if reasoning is None else REASONING_FORMATS[reasoning]
    )
    parser = format.parser(USE, new_id=lambda: f"id{next(numbers)}")
    ends = [*sorted(cuts or ()), len(text)]
    events = [event for begin, end in zip([0, *ends], ends, strict=False) for event in parser.push(text[begin:end])]
    return events + parser.finish()


def reply(name: str | None, text: str, reasoning: str | None = None) -> Reply:
    return whole_of(parsed(name, text, reasoning=reasoning))


@pytest.mark.parametrize("name", FORMATS)
def test_two_calls_are_read(name: str) -> None:
    """A call would be lost, or come back as text with its tags."""
    answer = reply(name, TWO_CALLS[name])
    assert answer == Reply("", "", (Call("id0", "weather", CITY), Call("id1", "weather", DAYS)))


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_stream(name: str) -> None:
    """A client would see nothing of a long text until the whole call is there."""
    text = TWO_CALLS[name]
    events = parsed(name, text, [*range(len(text))])
    kinds = [type(event) for event in events]
    assert kinds.count(CallBegun) == kinds.count(CallEnded) == 2
    assert kinds.count(ArgumentsDelta) > (8 if name in (*TAGGED, *LITERAL) else 10)
    begun = kinds.index(CallBegun)
    assert set(kinds[:begun]) <= {TextDelta}
    assert CallEnded in kinds[: kinds.index(CallBegun, begun + 1)], "a call begins before the last one has ended"


@pytest.mark.parametrize("name", FORMATS)
def test_every_beginning_of_an_answer_is_kept(name: str) -> None:
    """An answer that `max_tokens` cuts off would lose what had come of it."""
    text = TWO_CALLS[name]
    for end in range(len(text)):
        answer = whole_of(parsed(name, text[:end], [end // 2]))
        if not answer.calls:
            assert answer.text == text[:end], "nothing was called, so all is text"
        for call, whole in zip(answer.calls, (CITY, DAYS), strict=False):
            assert whole.startswith(call.arguments)
            assert call.is_complete == (call.arguments == whole)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_of_an_unknown_tool_is_text(name: str) -> None:
    """A client would be asked to call what it never offered; or the text would vanish."""
    text = TWO_CALLS[name].replace("weather", "whether")
    answer = reply(name, text)
    expected = text.replace("<|call|>", "\n", 1).replace("<|call|>", "") if name == "openai" else text
    assert answer == Reply(expected)


@pytest.mark.parametrize("name", MARKED)
def test_text_before_and_after_a_call_stays(name: str) -> None:
    """Models explain what they are about to do; and some go on."""
    before = "<|channel|>final<|message|>Let me see.<|end|><|start|>assistant" if name == "openai" else "Let me see.\n"
    if name == "llama3_json":
        before = "Let me see. "
    if name == "llama4_pythonic":
        before = "Let me see. <|python_start|>"
    answer = reply(name, before + TWO_CALLS[name])
    assert answer.text == "Let me see."
    assert [call.arguments for call in answer.calls] == [CITY, DAYS]
    if name != "openai":
        assert reply(name, TWO_CALLS[name] + " Done. ").text == " Done. "


@pytest.mark.parametrize("name", FORMATS)
def test_plain_text_stays_as_it_is(name: str) -> None:
    """A parser would swallow the space at the end of a poem, or a bracket that begins no call."""
    for text in ("Hello, world.\n", "  indented {not: a call} ", "{", "[1, 2]", "", " ", '{"name": "weather"', "<tool"):
        assert reply(name, text) == Reply(text)


PIECES = st.sampled_from(
    [
        *(part for text in TWO_CALLS.values() for part in (text, text[: len(text) // 2], text[len(text) // 3 :])),
        *(marker for format in FORMATS.values() for marker in format.markers),
        *("<think>", "</think>", "text", " ", "\n\n", "{", '"', "}", "]", "; ", ", ", "<function=now>", "</function>"),
        *('{"arguments": {"city": 1}, "name": "now"}', '{"name": "now"}', '{"name": "now", "arguments": "{}"}'),
    ]
)


@given(st.sampled_from(sorted(FORMATS)), st.sampled_from([None, *REASONING_FORMATS]), st.lists(PIECES), st.data())
def test_where_an_answer_is_cut_changes_nothing(
    name: str, reasoning: str | None, pieces: list[str], data: st.DataObject
) -> None:
    """A marker that is split over two deltas would be missed, and a stream would differ from a whole answer."""
    text = "".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    whole = whole_of(parsed(name, text, reasoning=reasoning))
    assert whole_of(parsed(name, text, cuts, reasoning=reasoning)) == whole
    assert whole_of(parsed(name, text, [*range(len(text))], reasoning=reasoning)) == whole


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in LITERAL])
@examples(20)
@given(arguments=st.dictionaries(st.text(), VALUES, max_size=3), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_rendered_calls_are_read_back(name: str, arguments: dict[str, object], cuts: list[int]) -> None:
    """Braces, quotes, tags and line breaks in a value would end the arguments too early."""
    if name in TAGGED:
        arguments = {"city": "".join(map(str, arguments))}
        text = TWO_CALLS[name].replace('Ul"m {', arguments["city"])
        text = text.replace("days", "city", 1) if "days" in text else text
        text = text.replace(TAGGED[name], TAGGED[name].replace("3", arguments["city"]))
    else:
        text = TWO_CALLS[name].replace(CITY, json.dumps(arguments)).replace(DAYS, json.dumps(arguments))
    events = parsed(name, text, [min(cut, len(text)) for cut in cuts])
    for call in whole_of(events).calls:
        assert call.is_complete
        assert json.loads(call.arguments) == arguments


def test_values_get_the_types_of_the_schema() -> None:
    """Qwen3-Coder writes no JSON: a number would come as a text, and a text that looks like a number as one."""
    values = {"city": "12", "days": "12", "units": "C", "any": "[1, {}]"}
    text = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    (call,) = reply("qwen3_coder", f"<tool_call>\n<function=weather>\n{text}</function>\n</tool_call>").calls
    assert json.loads(call.arguments) == {"city": "12", "days": 12, "units": "C", "any": [1, {}]}
    (call,) = reply("qwen3_coder", "<function=weather><parameter=any>True</parameter></function>").calls
    assert json.loads(call.arguments) == {"any": True}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{'a': [True, None, 1.5], 'é': {}}", {"a": [True, None, 1.5], "é": {}}),
        ("['it\\'s', \"x\"]", ["it's", "x"]),
        ('{"a": 1}', {"a": 1}),
        ("{1, 2}", "{1, 2}"),
        ("[open('x')]", "[open('x')]"),
        ("[" * 999, "[" * 999),
        ("[" + "-" * 9999 + "1]", "[" + "-" * 9999 + "1]"),
    ],
)
def test_lists_and_objects_as_python_writes_them(written: str, expected: Any) -> None:
    """The template of Seed-OSS writes them so. They came as texts, which the schema forbids."""
    schema = {"type": "object", "properties": {"value": {"type": ["object", "array"]}}}
    parser = ReplyFormat(FORMATS["seed_oss"]).parser(ToolUse((Tool("f", parameters=schema),)))
    text = f"<seed:tool_call>\n<function=f>\n<parameter=value>{written}</parameter>\n</function>\n</seed:tool_call>"
    (call,) = whole_of([*parser.push(text), *parser.finish()]).calls
    assert json.loads(call.arguments) == {"value": expected}


def test_nothing_is_a_call_where_none_may_be() -> None:
    """`tool_choice: none` would still make calls."""
    text = TWO_CALLS["hermes"]
    for use in (ToolUse(), ToolUse(USE.tools, Choice.NONE)):
        parser = ReplyFormat(FORMATS["hermes"]).parser(use)
        assert whole_of([*parser.push(text), *parser.finish()]) == Reply(text)
    parser = ReplyFormat(FORMATS["hermes"]).parser(ToolUse(USE.tools, Choice.REQUIRED, "now"))
    assert not whole_of([*parser.push(text), *parser.finish()]).calls


class CountingSource(Source):
    """Counts the characters that a parser looks at."""

    looked_at = 0

    def peek(self, at: int = 0) -> str:
        text = super().peek(at)
        self.looked_at += len(text)
        return text

    def match(self, pattern: re.Pattern[str], at: int = 0, most: int | None = None) -> re.Match[str] | None:
        self.looked_at += self.size - at if most is None else min(most, self.size - at)
        return super().match(pattern, at, most)


def test_a_name_without_end_is_looked_at_once() -> None:
    """Each token would be read together with all before it: a long answer would stop all streams of the server."""
    text = '{"name": "' + "a" * 20_000
    source = CountingSource()
    steps = FORMATS["json"].read(source, Calls(USE.tools, lambda: "id"))
    for at in range(0, len(text), 4):
        source.feed(text[at : at + 4])
        assert next(steps) is None
    assert source.looked_at < 10 * len(text)


def test_where_a_long_head_is_cut_changes_nothing() -> None:
    """A stream and a whole answer would differ where space pushes the arguments far behind the name."""
    for size in (480, 500, 520, 2_000):
        text = f'{{"name": "weather",{" " * size}"arguments": {DAYS}}}'
        whole = whole_of(parsed("json", text))
        assert whole == whole_of(parsed("json", text, [*range(len(text))]))
        assert whole.calls == (Call("id0", "weather", DAYS),)


WRONG = (
    '{"city": Ulm}',
    '{"days": 1e999}',
    '{"days": NaN}',
    '{"city": "\\ud800"}',
    '{"a" 1}',
)
"""Arguments whose brackets are fine."""


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {*TAGGED, *LITERAL}))
@pytest.mark.parametrize("arguments", WRONG)
def test_arguments_that_are_no_json_are_not_complete(name: str, arguments: str) -> None:
    """A client would be told to run a call whose arguments it cannot parse."""
    answer = reply(name, TWO_CALLS[name].replace(CITY, arguments))
    assert [(call.arguments, call.is_complete) for call in answer.calls] == [(arguments, False), (DAYS, True)]


@pytest.mark.parametrize("name", ["json", "llama3_json"])
def test_a_line_break_separates_two_calls(name: str) -> None:
    """The second call would come as text, and never be made."""
    text = "\n".join(f'{{"name": "weather", "parameters": {each}}}' for each in (CITY, DAYS))
    assert [call.arguments for call in reply(name, text).calls] == [CITY, DAYS]
    assert reply(name, text).text == ""


NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (NULLABLE, "89073", "89073"),
        (NULLABLE, "true", "true"),
        (NULLABLE, "null", None),
        (NULLABLE, "None", None),
        (NULLABLE, '"Ulm"', "Ulm"),
        ({"type": ["string", "null"]}, "89073", "89073"),
        ({"$ref": "#/$defs/zip"}, "89073", "89073"),
        ({"oneOf": [{"$ref": "#/$defs/zip"}, {"type": "integer"}]}, "89073", 89073),
        ({"$ref": "#/$defs/loop"}, "89073", 89073),
        ({"enum": ["1", None]}, "1", "1"),
        ({"type": "number"}, "1e400", "1e400"),
        ({}, "NaN", "NaN"),
        ({}, r'"\ud800"', r'"\ud800"'),
    ],
)
def test_a_value_gets_a_type_that_its_schema_allows(schema: dict[str, Any], value: str, expected: object) -> None:
    """A postal code would become a number, and a large number what is no JSON."""
    definitions = {"zip": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    parser = ReplyFormat(FORMATS["qwen3_coder"]).parser(ToolUse((Tool("f", parameters=parameters),)))
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (call,) = whole_of([*parser.push(text), *parser.finish()]).calls
    assert json.loads(call.arguments) == {"x": expected}
    assert type(json.loads(call.arguments)["x"]) is type(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "a\nb\tc"}', {"city": "a\nb\tc"}),
        ('{"city": "a,}", "days": 3,}', {"city": "a,}", "days": 3}),
        ('{"any": [1, 2, ], }', {"any": [1, 2]}),
        ('{"city": "\\"\n,}"}', {"city": '"\n,}'}),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "mistral", "llama3_json", "deepseek_v31"])
def test_what_models_get_wrong_in_json_is_mended(name: str, arguments: str, expected: Any) -> None:
    """A raw line break in a string, or a comma too many, and the call failed."""
    text = TWO_CALLS[name].replace(CITY, arguments)
    for cuts in ([], [*range(len(text))]):
        call = whole_of(parsed(name, text, cuts)).calls[0]
        assert call.is_complete
        assert json.loads(call.arguments) == expected


def test_brackets_that_are_missing_before_a_tag() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"any": [{"a": 1\n</tool_call>'
    (call,) = reply("hermes", text).calls
    assert (json.loads(call.arguments), call.is_complete) == ({"any": [{"a": 1}]}, True)
    (call,) = reply("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "U</tool_call>').calls
    assert not call.is_complete
