"""The calls of Qwen3-Coder: tags for the function and for each argument, whose values are no JSON.

    <tool_call>
    <function=weather>
    <parameter=city>
    Ulm
    </parameter>
    </function>
    </tool_call>

A value becomes JSON by the type that the tool's schema gives it. What may only be a text is sent as it comes.

Source: Qwen, the chat template of Qwen3-Coder, 2025.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sluice.text.constraints.shapes import Choice, JsonSchema, Literal, Shape, TextUntil
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, skip_texts, text_and_calls
from sluice.text.parsers.events import ArgumentsDelta, CallEnded, Event
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.parsing import Source, Steps, comes, more, place_of, space_ahead
from sluice.text.parsers.schema_types import type_of, types_of
from sluice.text.parsers.shapes import ShapedTool, Speller, optional

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
PYTHON: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""The template writes constants of earlier calls as Python does, so models do, too."""


class Qwen3Coder(TaggedFormat):
    name = "qwen3_coder"
    begin, markers = BEGIN, (BEGIN, END)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(marker: str) -> Steps[bool]:
            at = 0
            if marker == BEGIN:
                at = yield from space_ahead(source)
                if not (yield from comes(source, FUNCTION, at)):
                    return False
                at += len(FUNCTION)
            end = yield from place_of(source, ">", at + LONGEST_HEAD)
            begun = calls.begin(source.peek()[at:end].strip()) if end >= 0 else None
            if begun is None:
                return False
            source.take(end + 1)
            yield begun
            yield from _read_arguments(source, begun.index, calls.tools[begun.name].schema)
            yield from skip_texts(source, END)
            return True

        yield from text_and_calls(source, (BEGIN, FUNCTION), read_call)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        schema = tool.arguments.schema
        properties, required = schema.get("properties", {}), schema.get("required", [])
        values: list[Shape] = []
        for name, given in properties.items():
            value = _value_shape(name, given, tool.arguments)
            values.append(value if name in required else optional(value))
        return speller.sequence(f"{BEGIN}\n{FUNCTION}{tool.name}>\n", *values, f"{FUNCTION_END}\n{END}")


def _read_arguments(source: Source, index: int, schema: Mapping[str, Any]) -> Steps[None]:
    """Read the arguments of a call and its end, and yield them as JSON."""
    given = schema.get("properties")
    properties: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    between = "{"
    is_complete = False
    while not is_complete:
        space = yield from space_ahead(source)
        is_complete = yield from comes(source, FUNCTION_END, space)
        if is_complete:
            source.take(space + len(FUNCTION_END))
            break
        if not (yield from comes(source, PARAMETER, space)):
            break
        begin = space + len(PARAMETER)
        end = yield from place_of(source, ">", begin + LONGEST_HEAD)
        if end < 0:
            break
        name = source.take(end + 1)[begin:-1].strip()
        yield ArgumentsDelta(index, f"{between}{json.dumps(name, ensure_ascii=False)}: ")
        between = ", "
        value, types = properties.get(name), types_of(properties.get(name), schema)
        if not (yield from _read_value(source, value, types, lambda text: ArgumentsDelta(index, text))):
            break
    if is_complete:
        yield ArgumentsDelta(index, "{}" if between == "{" else "}")
    yield CallEnded(index, is_complete)


def _read_value(source: Source, schema: Any, types: frozenset[str], event: Callable[[str], Event]) -> Steps[bool]:
    """Read a value and its end, and yield it as JSON. Returns whether it is complete.

    A line break behind the first tag, and one before the second, belong to the tags.
    """
    if (yield from comes(source, "\n")):
        source.take(1)
    if not _is_text(schema):
        parts: list[str] = []
        is_complete = yield from _read_lines(source, parts.append)
        if parts or is_complete:
            yield event(_json_of("".join(parts), types))
        return is_complete
    yield event('"')
    is_complete = yield from _read_lines(source, lambda text: event(json.dumps(text, ensure_ascii=False)[1:-1]))
    if is_complete:
        yield event('"')
    return is_complete


def _read_lines(source: Source, keep: Callable[[str], Event | None]) -> Steps[bool]:
    """Read up to the end of a value, and yield what `keep` makes of each part of it, if that is an event."""
    held = ""
    while True:
        at, marker = source.find((PARAMETER_END,), is_text_at_end=False)
        text = held + source.take(at)
        kept = text.removesuffix("\n")
        held = text[len(kept) :]
        made = keep(kept) if kept else None
        if made is not None:
            yield made
        if marker:
            source.take(len(marker))
            return True
        if not (yield from more(source)):
            source.take()  # of an end that was cut off
            return False


def _is_text(schema: Any) -> bool:
    """Whether values of a schema can be nothing but texts."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    options = schema.get("enum")
    return isinstance(options, list) and bool(options) and all(isinstance(each, str) for each in options)


def _json_of(value: str, types: frozenset[str]) -> str:
    """Return a value as JSON: as it stands if that is JSON, as Python's constants if it is one, else as a text.

    Args:
        types: that its schema allows. Where a text may be, JSON of another type that may not be is one.
    """
    try:
        content = msgspec.json.decode(PYTHON.get(value, value))
        if "string" not in types or type_of(content) in types:
            return json.dumps(content, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        pass
    return json.dumps(value, ensure_ascii=False)


def _value_shape(name: str, schema: Any, arguments: JsonSchema) -> Shape:
    """Return the shape of an argument. Of what a schema says about texts, only its `enum` is kept."""
    begin, end = Literal(f"{PARAMETER}{name}>\n"), f"\n{PARAMETER_END}\n"
    if _is_text(schema):
        options = schema.get("enum")
        if options:
            return Row((begin, Choice(tuple(options)), Literal(end)))
        return Row((begin, TextUntil(end)))
    definitions = {key: arguments.schema[key] for key in ("$defs", "definitions") if key in arguments.schema}
    given = {**schema, **definitions} if isinstance(schema, dict) else schema
    return Row((begin, JsonSchema(given, f"{arguments.place}.properties.{name}"), Literal(end)))
