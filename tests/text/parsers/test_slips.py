"""What models get wrong, in every format: the call that was meant, or text, and never half a call that looks whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from sluice.text.parsers.events import Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Tool, ToolUse

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sure": {"type": "boolean"},
    },
}
USE = ToolUse((Tool("weather", parameters=SCHEMA), Tool("now")))
CALLS_BEGIN, CALLS_END, BEGIN, END, SEP = (
    f"<\uff5ctool\u2581{each}\uff5c>"
    for each in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)
DSML = "\uff5cDSML\uff5c"
ARGUMENTS = {"city": "Ulm", "days": 3}


def as_json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tagged(before: str, middle: str, after: str, arguments: dict[str, Any]) -> str:
    return "".join(f"{before}{name}{middle}{as_text(value)}{after}" for name, value in arguments.items())


def python(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def gemma(arguments: dict[str, Any]) -> str:
    def spelled(value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(spelled, value))}]"
        return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)

    return ",".join(f"{name}:{spelled(value)}" for name, value in arguments.items())


@dataclass(frozen=True)
class Spelling:
    """How a format writes calls: what stands around all, and around the arguments of each."""

    write: Callable[[dict[str, Any]], str]
    before: str
    after: str
    all_before: str = ""
    all_after: str = ""
    between: str = ""

    def call(self, arguments: dict[str, Any] | str, name: str = "weather") -> str:
        text = arguments if isinstance(arguments, str) else self.write(arguments)
        return self.before.replace("NAME", name) + text + self.after

    def all(self, *calls: str, between: str | None = None) -> str:
        return self.all_before + (self.between if between is None else between).join(calls) + self.all_after


OBJECT = '{"name": "NAME", "arguments": '
INVOKED = partial(tagged, '<parameter name="', '">', "</parameter>\n")
DSML_INVOKED = partial(tagged, f'<{DSML}parameter name="', '" string="true">', f"</{DSML}parameter>\n")
XML = partial(tagged, "<parameter=", ">\n", "\n</parameter>\n")
SPELLINGS = {
    "hermes": Spelling(as_json, f"<tool_call>\n{OBJECT}", "}\n</tool_call>", between="\n"),
    "llama3_json": Spelling(as_json, '{"name": "NAME", "parameters": ', "}", "<|python_tag|>", "", "; "),
    "mistral": Spelling(as_json, "[TOOL_CALLS]NAME[ARGS]", ""),
    "qwen3_coder": Spelling(XML, "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", between="\n"),
    "seed_oss": Spelling(
        partial(tagged, "<parameter=", ">", "</parameter>\n"),
        "<seed:tool_call>\n<function=NAME>\n",
        "</function>\n</seed:tool_call>",
        between="\n",
    ),
    "deepseek_v3": Spelling(
        as_json,
        f"{BEGIN}function{SEP}NAME\n```json\n",
        f"\n```{END}",
        CALLS_BEGIN,
        CALLS_END,
        "\n",
    ),
    "deepseek_v31": Spelling(
        as_json,
        f"{BEGIN}NAME{SEP}",
        END,
        CALLS_BEGIN,
        CALLS_END,
    ),
    **{
        name: Spelling(
            DSML_INVOKED,
            f'<{DSML}invoke name="NAME">\n',
            f"</{DSML}invoke>",
            f"<{DSML}{section}>\n",
            f"\n</{DSML}{section}>",
            "\n",
        )
        for name, section in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    },
    "kimi_k2": Spelling(
        as_json,
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "glm45": Spelling(
        partial(tagged, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        "<tool_call>NAME\n",
        "</tool_call>",
        between="\n",
    ),
    "glm47": Spelling(
        partial(tagged, "<arg_key>", "</arg_key><arg_value>", "</arg_value>"), "<tool_call>NAME", "</tool_call>"
    ),
    "minimax_m2": Spelling(
        INVOKED, '<invoke name="NAME">\n', "</invoke>", "<minimax:tool_call>\n", "\n</minimax:tool_call>", "\n"
    ),
    "gemma4": Spelling(gemma, "<|tool_call>call:NAME{", "}<tool_call|>"),
    "llama4_pythonic": Spelling(python, "NAME(", ")", "[", "]", ", "),
    "lfm2": Spelling(python, "NAME(", ")", "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "olmo3": Spelling(python, "NAME(", ")", "<function_calls>", "</function_calls>", "\n"),
    "phi4_mini": Spelling(as_json, OBJECT, "}", "functools[", "]", ", "),
    "granite": Spelling(as_json, OBJECT, "}", "<|tool_call|>[", "]", ", "),
    "nemotron_v2": Spelling(as_json, OBJECT, "}", "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "apriel": Spelling(as_json, OBJECT, "}", "<tool_calls>[", "]</tool_calls>", ", "),
    "openai": Spelling(
        as_json,
        "<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "<|call|>",
    ),
    "json": Spelling(as_json, OBJECT, "}", "[", "]", ", "),
}
JSON = [name for name, spelling in SPELLINGS.items() if spelling.write is as_json]
BARE = ("json", "llama4_pythonic")
"""Formats whose calls stand at the beginning of an answer alone."""


def read(name: str, text: str, *, reasoning: str | None = None, prompt: str = "", is_cut: bool = False) -> Reply:
    """What a text is, whole and character by character."""
    found = []
    thoughts = None if reasoning is None else REASONING_FORMATS[reasoning]
    for cuts in ([0, len(text)], [*range(len(text) + 1)]):
        parser = ReplyFormat(FORMATS[name], thoughts).parser(USE, prompt, lambda: "1")
        events = [event for begin, end in itertools.pairwise(cuts) for event in parser.push(text[begin:end])]
        found.append(whole_of([*events, *parser.finish(is_cut=is_cut)]))
    assert found[0] == found[1]
    return found[0]


def called(reply: Reply) -> list[tuple[str, Any]]:
    """The calls of a reply, of which all must be whole."""
    assert all(call.is_complete for call in reply.calls)
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


MEANT = [("weather", ARGUMENTS)]


@pytest.mark.parametrize("name", FORMATS)
def test_closers_that_are_missing_at_the_end(name: str) -> None:
    """A model stopped behind the last argument, or within the tags behind it."""
    spelling = SPELLINGS[name]
    text = spelling.all(spelling.call(ARGUMENTS))
    last = text.rindex("3") + 1
    for end in range(last, len(text) + 1):
        reply = read(name, text[:end])
        if reply.calls and reply.calls[0].is_complete:
            assert called(reply) == MEANT, text[:end]
        assert reply.calls or reply.text == text[:end]
        assert not (reply.calls and spelling.before[:9] in reply.text)
    assert called(read(name, text[: len(text) - len(spelling.all_after)])) == MEANT
    if name not in ("glm45", "glm47"):
        without = text[: len(text) - len(spelling.all_after) - len(spelling.after)]
        assert called(read(name, without)) == MEANT, without


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_was_cut_off_is_never_whole(name: str) -> None:
    """`max_tokens` ended the answer within the arguments: more of them may have come."""
    spelling = SPELLINGS[name]
    text = spelling.all(spelling.call({"days": 3, "city": "Ulm"}))
    for end in range(text.index("Ulm")):
        reply = read(name, text[:end], is_cut=True)
        assert not any(call.is_complete for call in reply.calls), text[:end]


@pytest.mark.parametrize("name", FORMATS)
def test_closers_within_a_value(name: str) -> None:
    spelling = SPELLINGS[name]
    closers = {*FORMATS[name].markers, spelling.after.strip(), spelling.all_after.strip(), "}", ")", "]", '"}', "')"}
    for closer in closers - {""}:
        given = {"city": f"a {closer} b", "days": 3}
        assert called(read(name, spelling.all(spelling.call(given)))) == [("weather", given)], closer


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("openai", "llama4_pythonic")])
def test_a_call_in_a_thought_that_never_ends(name: str) -> None:
    spelling = SPELLINGS[name]
    call = spelling.call(ARGUMENTS) if name == "json" else spelling.all(spelling.call(ARGUMENTS))
    reply = read(name, f"I should look.\n{call}", reasoning="qwen3", prompt="<think>\n")
    assert (called(reply), reply.reasoning, reply.text) == (MEANT, "I should look.", "")
    reply = read(name, f"I should look.\n{call}\nThen.</think>It rains.", reasoning="qwen3", prompt="<think>\n")
    assert (reply.calls, reply.text) == ((), "It rains.")


@pytest.mark.parametrize("name", FORMATS)
def test_two_calls_that_run_together(name: str) -> None:
    spelling = SPELLINGS[name]
    two = [spelling.call({"city": "Ulm"}), spelling.call({"days": 3})]
    meant = [("weather", {"city": "Ulm"}), ("weather", {"days": 3})]
    assert called(read(name, spelling.all(*two, between=""))) == meant
    each_alone = "\n".join(spelling.all(call) for call in two)
    assert called(read(name, each_alone)) == meant


@pytest.mark.parametrize("name", FORMATS)
def test_text_around_a_call(name: str) -> None:
    spelling = SPELLINGS[name]
    text = spelling.all(spelling.call(ARGUMENTS))
    for before in ("", "I look.\n\n"):
        if before and name in BARE:
            continue
        reply = read(name, f"{before}{text}\nDone.")
        assert (called(reply), reply.text.split()) == (MEANT, [*before.split(), "Done."])


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_in_a_string(name: str) -> None:
    """Or, where they are no JSON otherwise, as an object."""
    spelling = SPELLINGS[name]
    text = as_json(ARGUMENTS)
    if name in JSON:
        text = json.dumps(text)
    if name == "gemma4":
        text = text[1:-1]
    assert called(read(name, spelling.all(spelling.call(text)))) == MEANT


@pytest.mark.parametrize("name", [name for name in FORMATS if name in JSON or SPELLINGS[name].write in (python, gemma)])
def test_commas_too_many(name: str) -> None:
    spelling = SPELLINGS[name]
    text = spelling.write({**ARGUMENTS, "tags": ["a"]}).replace('"]', '",]').replace("']", "',]")
    text = f"{text[:-1]},}}" if name in JSON else f"{text},"
    assert called(read(name, spelling.all(spelling.call(text)))) == [("weather", {**ARGUMENTS, "tags": ["a"]})]


LISTED = [name for name, spelling in SPELLINGS.items() if spelling.all_after[:1] == "]"]


@pytest.mark.parametrize("behind", [",", ",\n"])
@pytest.mark.parametrize("name", LISTED)
def test_a_comma_behind_the_last_call(name: str, behind: str) -> None:
    """The end of the list, and its tag, came as text."""
    spelling = SPELLINGS[name]
    reply = read(name, spelling.all(spelling.call(ARGUMENTS), spelling.call(ARGUMENTS) + behind))
    assert (called(reply), reply.text) == (MEANT * 2, "")


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_another_type_than_the_schema_has(name: str) -> None:
    spelling = SPELLINGS[name]
    given = {"city": 89073, "days": "3", "sure": "true", "tags": '["a"]'}
    meant = {"city": "89073", "days": 3, "sure": True, "tags": ["a"]}
    assert called(read(name, spelling.all(spelling.call(given)))) == [("weather", meant)]


@pytest.mark.parametrize("name", FORMATS)
def test_line_breaks_and_space(name: str) -> None:
    """Raw line breaks in a text, and space around the arguments."""
    spelling = SPELLINGS[name]
    given = {"city": "New\nYork", "days": 3}
    text = spelling.write(given)
    if name in JSON:
        text = json.dumps(given, indent=2).replace("\\n", "\n")
    elif spelling.write is python:
        text = f"\n  {text}\n".replace("\\n", "\n").replace("=", " = ")
    assert called(read(name, spelling.all(spelling.call(text)))) == [("weather", given)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_without_arguments(name: str) -> None:
    spelling = SPELLINGS[name]
    assert called(read(name, spelling.all(spelling.call({}, "now")))) == [("now", {})]


@pytest.mark.parametrize("name", JSON)
def test_backslashes_that_json_has_not(name: str) -> None:
    """Of paths and regular expressions. The call was not whole."""
    spelling = SPELLINGS[name]
    for written, meant in (
        (r"C:\Users\\n \d+\.\u12", r"C:\Users\n \d+\.\u12"),
        (r"\u00e9\'\u1\"\n", "é'\\u1\"\n"),
        (r"\u\u00e9\ud83d\ude00\u", "\\ué😀\\u"),
    ):
        text = f'{{"city": "{written}", "days": 3}}'
        assert called(read(name, spelling.all(spelling.call(text)))) == [("weather", {"city": meant, "days": 3})]


JSON_ELSEWHERE = ("qwen3_coder", "seed_oss", "glm45", "glm47", "minimax_m2", "deepseek_v32", "deepseek_v4", "gemma4")


@pytest.mark.parametrize("name", JSON_ELSEWHERE)
def test_json_between_the_tags_of_another_form(name: str) -> None:
    """As Qwen3-Coder falls back to the form of its forebears."""
    begin, end = FORMATS[name].markers[:2]
    call = as_json({"name": "weather", "arguments": ARGUMENTS})
    for text in (f"{begin}\n{call}\n{end}", f"{begin}```json\n[{call}]\n```{end}", f"{begin}{call}"):
        assert (called(read(name, text)), read(name, text).text) == (MEANT, "")


@pytest.mark.parametrize("name", ["kimi_k2", "deepseek_v3", "deepseek_v31", "mistral", "openai"])
def test_arguments_left_out(name: str) -> None:
    """The tags of such a call came as text."""
    spelling = SPELLINGS[name]
    if name != "mistral":  # whose calls nothing ends
        reply = read(name, spelling.all(spelling.call("", "now")))
        assert (called(reply), reply.text) == ([("now", {})], "")
    two = spelling.all(spelling.call("", "now"), spelling.call(ARGUMENTS))
    assert called(read(name, two)) == [("now", {}), *MEANT]


def test_the_end_of_an_answer_ends_a_call_without_arguments() -> None:
    """The stop token behind it is no text of the answer."""
    text = SPELLINGS["openai"].call("", "now").removesuffix("<|call|>")
    assert called(read("openai", text)) == [("now", {})]
    for reply in (read("openai", text, is_cut=True), read("openai", text.replace(".now", ".weather"))):
        assert not reply.calls[0].is_complete


def test_the_form_of_deepseek_v3_from_a_later_model() -> None:
    spelling = SPELLINGS["deepseek_v3"]
    reply = read("deepseek_v31", spelling.all(spelling.call(ARGUMENTS), spelling.call({}, "now")))
    assert (called(reply), reply.text) == ([*MEANT, ("now", {})], "")


def test_the_tag_with_a_name_that_llama_may_write() -> None:
    """Functionary's answers came as text."""
    call, now = f"<function=weather>{as_json(ARGUMENTS)}</function>", "<function=now></function>"
    reply = read("llama3_json", f"I look.\n{call}{now}\nDone.")
    assert (called(reply), reply.text.split()) == ([*MEANT, ("now", {})], ["I", "look.", "Done."])
    assert called(read("llama3_json", call.removesuffix("</function>"))) == MEANT
    assert read("llama3_json", call.replace("weather", "whether")).text == call.replace("weather", "whether")
    given = {"city": f"{call} </function>"}
    assert called(read("llama3_json", f"<function=weather>{as_json(given)}</function>")) == [("weather", given)]


@pytest.mark.parametrize("name", [name for name, spelling in SPELLINGS.items() if spelling.write.__class__ is partial])
def test_quotes_around_what_is_no_text(name: str) -> None:
    spelling = SPELLINGS[name]
    given = {"city": '"Ulm"', "days": '"3"', "tags": '"[\\"a\\"]"'}
    meant = {"city": '"Ulm"', "days": 3, "tags": ["a"]}
    assert called(read(name, spelling.all(spelling.call(given)))) == [("weather", meant)]


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_values_of_which_is_not_said_whether_they_are_texts(name: str) -> None:
    spelling = SPELLINGS[name]
    text = spelling.all(spelling.call(ARGUMENTS), spelling.call({"days": 3, "city": ' string="true">'}))
    reply = read(name, text.replace('" string="true">', '">'))
    assert (called(reply), reply.text) == ([*MEANT, ("weather", {"days": 3, "city": ' string="true">'})], "")


@pytest.mark.parametrize("name", [name for name, spelling in SPELLINGS.items() if spelling.write is python])
def test_json_between_the_tags_of_python(name: str) -> None:
    begin, end = FORMATS[name].markers
    call = as_json({"name": "weather", "arguments": ARGUMENTS})
    for text in (f"{begin}[{call}, {call}]{end}", f"{begin}\n{call}\n{call}{end}"):
        assert (called(read(name, text)), read(name, text).text) == (MEANT * 2, "")


@pytest.mark.parametrize("name", FORMATS)
def test_tools_that_were_not_offered_are_text(name: str) -> None:
    spelling = SPELLINGS[name]
    text = spelling.all(spelling.call(ARGUMENTS, "whether"))
    reply = read(name, text)
    assert not reply.calls
    assert "whether" in reply.text
    assert "Ulm" in reply.text


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_in_a_fence(name: str) -> None:
    spelling = SPELLINGS[name]
    reply = read(name, f"```\n{spelling.all(spelling.call(ARGUMENTS))}\n```")
    assert (called(reply), reply.text.strip("`\n")) == (MEANT, "")


@pytest.mark.parametrize("name", FORMATS)
def test_a_namespace_that_no_tool_has(name: str) -> None:
    spelling = SPELLINGS[name]
    assert called(read(name, spelling.all(spelling.call(ARGUMENTS, "functions.weather")))) == MEANT


@pytest.mark.parametrize(
    "text", ["{'city': 'Ulm', 'sure': True, 'tags': ['a']}", '{"city": "Ulm", "sure": True, "tags": ["a"]}']
)
@pytest.mark.parametrize("name", JSON)
def test_objects_as_python_writes_them(name: str, text: str) -> None:
    spelling = SPELLINGS[name]
    given = {"city": "Ulm", "sure": True, "tags": ["a"]}
    assert called(read(name, spelling.all(spelling.call(text)))) == [("weather", given)]


OBJECTS = [name for name in JSON if '"name": "NAME"' in SPELLINGS[name].before]


@pytest.mark.parametrize("name", OBJECTS)
def test_calls_of_other_members(name: str) -> None:
    """Arguments under another name came as none at all."""
    spelling = SPELLINGS[name]
    text = as_json(ARGUMENTS)
    for call in (
        f'{{"type": "function", "function": {{"name": "weather", "arguments": {text}}}}}',
        f'{{"name": "weather", "args": {text}}}',
        f'{{"arguments": {text}, "name": "weather"}}',
        f'{{"id": 1, "name": "weather", "arguments": {text}, "why": "It was asked for."}}',
        f'{{"arguments": {text[:-1]},}}, "name": "weather",}}',
        f'{{"type": "function", "function": "weather", "arguments": {text}}}',
        f"{{'name': 'weather', 'arguments': {text}}}",
        f"{{ 'name':'weather', 'arguments':{ARGUMENTS!r}}}",
    ):
        begin, end = spelling.before.index("{"), spelling.after.index("}") + 1
        assert called(read(name, spelling.all(spelling.before[:begin] + call + spelling.after[end:]))) == MEANT, call
    now = spelling.before[:begin] + '{"name": "now", "arguments": ""}' + spelling.after[end:]
    assert called(read(name, spelling.all(now))) == [("now", {})]
    other = spelling.before[: spelling.before.index("{")] + '{"name": "weather", "when": "now"}' + spelling.after[1:]
    assert not read(name, spelling.all(other)).calls


@pytest.mark.parametrize("name", JSON)
def test_a_bracket_too_many(name: str) -> None:
    """It came as text, with the tag behind it."""
    spelling = SPELLINGS[name]
    call = spelling.call(ARGUMENTS).replace("3}", "3}}")
    for count in (1, 2):
        reply = read(name, spelling.all(*[call] * count))
        assert (called(reply), reply.text) == (MEANT * count, "")


@pytest.mark.parametrize("between", ["\n", ", ", ""])
def test_two_objects_between_the_tags_of_one(between: str) -> None:
    weather, now = as_json({"name": "weather", "arguments": ARGUMENTS}), as_json({"name": "now"})
    for text in (f"{weather}{between}{now}", f"[{weather}, {now}]"):
        reply = read("hermes", f"<tool_call>\n{text}\n</tool_call>")
        assert (called(reply), reply.text) == ([*MEANT, ("now", {})], "")


@pytest.mark.parametrize("name", [name for name, spelling in SPELLINGS.items() if spelling.write is python])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Ulm", 3', {"city": "Ulm", "days": 3}),
        ("'Ulm', 3", {"city": "Ulm", "days": 3}),
        ("'it's', 3, ['a'], sure=True", {"city": "it's", "days": 3, "tags": ["a"], "sure": True}),
        ("city=Ulm, days=3", {"city": "Ulm", "days": 3}),
        ("city='it's, I say, \\'Ulm\\'', days=3", {"city": "it's, I say, 'Ulm'", "days": 3}),
        (r"city='\x41\u00e9\U0001f5fc\d', tags=('a', 'b')", {"city": "Aé🗼\\d", "tags": ["a", "b"]}),
        ("city='Ulm', other={'a': [None, -1.5], b: {}}", {"city": "Ulm", "other": {"a": [None, -1.5], "b": {}}}),
    ],
)
def test_what_python_may_write(name: str, text: str, expected: Any) -> None:
    spelling = SPELLINGS[name]
    assert called(read(name, spelling.all(spelling.call(text)))) == [("weather", expected)]


@pytest.mark.parametrize("name", [name for name, spelling in SPELLINGS.items() if spelling.write is python])
@pytest.mark.parametrize("text", ["days=date(2024, 1, 2)", "tags=[f(1)]", "tags=[1 2", "city='Ulm", "**given"])
def test_what_is_no_value_is_no_whole_call(name: str, text: str) -> None:
    spelling = SPELLINGS[name]
    assert not any(call.is_complete for call in read(name, spelling.all(spelling.call(text))).calls)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lfm2", r"weather(city='\U0000d800')"),
        ("lfm2", r"weather(days='\ud800')"),
        ("lfm2", r"weather(other={'\ud800': 1})"),
        ("mistral", r'weather[ARGS]{"days": "\ud800"}'),
        ("mistral", r"weather[ARGS]{'\ud800': '\udc00'}"),
        ("qwen3_coder", "<function=weather><parameter=tags>['\\ud800']</parameter></function>"),
    ],
)
def test_halves_of_characters_can_be_sent(name: str, text: str) -> None:
    """An answer that cannot be encoded would end the stream with an error."""
    begin = FORMATS[name].begins[0]
    reply = read(name, f"{begin}[{text}]" if name == "lfm2" else begin + text)
    assert reply.calls
    for call in reply.calls:
        call.arguments.encode()
