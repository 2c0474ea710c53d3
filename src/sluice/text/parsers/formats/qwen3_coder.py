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
from collections.abc import Collection, Generator, Mapping
from functools import partial
from typing import Any

from sluice.text.constraints.object_forms import forms_of, schemas_of
from sluice.text.constraints.shapes import Members
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.constraints.value_types import ALL, json_of, types_of
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, skip_texts, text_and_calls
from sluice.text.parsers.events import ArgumentsDelta, CallEnded
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.json_text import json_events
from sluice.text.parsers.parsing import Source, Steps, comes, place_of, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
VALUE_ENDS = (f"\n{PARAMETER_END}", PARAMETER_END, f"\n{PARAMETER}", f"\n{FUNCTION_END}", f"\n{END}")
"""What may end a value: its own tag, or what follows it where that is missing."""
FOLLOW: Mapping[str, tuple[str, ...]] = {
    PARAMETER_END: (PARAMETER, FUNCTION_END, END, BEGIN),
    FUNCTION_END: (END, BEGIN),
    END: (BEGIN,),
}
"""What stands behind an end that is one, if the answer does not end there."""


class Qwen3Coder(TaggedFormat):
    name = "qwen3_coder"
    begin, begins, markers = BEGIN, (BEGIN, FUNCTION), (BEGIN, END)

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
        arguments = Members(tool.arguments, PARAMETER, ">\n", f"\n{PARAMETER_END}\n")
        return speller.sequence(f"{BEGIN}\n{FUNCTION}{tool.name}>\n", arguments, f"{FUNCTION_END}\n{END}")


class _Types:
    """The types that the arguments of a tool may have, by name.

    Args:
        schema: of the object of the arguments.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema, self._forms = schema, forms_of(schema)
        self.names = {name for form in self._forms for name in form.properties}

    def of(self, name: str) -> frozenset[str]:
        schemas = schemas_of(self._forms, name)
        return frozenset[str]().union(*(types_of(each, self._schema) for each in schemas)) if schemas else ALL


def _read_arguments(source: Source, index: int, schema: Mapping[str, Any]) -> Steps[None]:
    """Read the arguments of a call and its end, and yield them as JSON. Of two of one name the first counts."""
    types = _Types(schema)
    space = yield from space_ahead(source)
    if source.starts_with("{", space):  # some models write JSON between the tags
        source.take(space)
        read = yield from json_events(source, partial(ArgumentsDelta, index))
        yield from skip_texts(source, FUNCTION_END)
        yield CallEnded(index, read.is_valid)
        return
    given: set[str] = set()
    has_closed = True
    while has_closed and (name := (yield from _read_name(source, types.names))) is not None:
        is_new = name not in given
        if is_new:
            yield ArgumentsDelta(index, f"{', ' if given else '{'}{json.dumps(name, ensure_ascii=False)}: ")
        given.add(name)
        value = _Value(types.of(name), types.names - given)
        for event in value.read(source):
            if event is None or is_new:
                yield None if event is None else ArgumentsDelta(index, event)
        has_closed = value.has_closed
    is_complete = has_closed and (yield from _ends(source, has_arguments=bool(given)))
    if is_complete:
        yield ArgumentsDelta(index, "}" if given else "{}")
    yield CallEnded(index, is_complete)


def _read_name(source: Source, names: Collection[str]) -> Steps[str | None]:
    """Read the first tag of an argument, and return its name; None if none comes next."""
    space = yield from space_ahead(source)
    if not (yield from comes(source, PARAMETER, space)):
        return None
    begin = space + len(PARAMETER)
    name = yield from _odd_name(source, begin, names)
    if name is not None:
        source.take(begin + len(name) + 1)
        return name
    end = yield from place_of(source, ">", begin + LONGEST_HEAD)
    return source.take(end + 1)[begin:-1].strip() if end >= 0 else None


def _odd_name(source: Source, begin: int, names: Collection[str]) -> Steps[str | None]:
    """Return the name that begins at a place, if it is one that ends elsewhere than before the first `>`."""
    odd = [name for name in names if ">" in name or name != name.strip()]
    for name in sorted(odd, key=len, reverse=True):
        if (yield from comes(source, f"{name}>", begin)):
            return name
    return None


def _ends(source: Source, *, has_arguments: bool) -> Steps[bool]:
    """Read the end of a call, and return whether it is complete: an end that is missing was meant."""
    space = yield from space_ahead(source)
    if (yield from comes(source, FUNCTION_END, space)):
        source.take(space + len(FUNCTION_END))
        return True
    if space == source.size:
        return has_arguments and not source.was_cut
    return has_arguments or (yield from comes(source, END, space))


class _Value:
    """Reads an argument's value and its end.

    A line break behind the first tag, and one before the second, belong to the tags. Tags that stand in a value, and
    end it nowhere, are text; one that is missing is known by what must follow it.

    Args:
        types: that the value may have.
        next_names: of arguments that may follow.
    """

    def __init__(self, types: frozenset[str], next_names: Collection[str]) -> None:
        self._types, self._next_names = types, next_names
        self.has_closed = False

    def read(self, source: Source) -> Generator[str | None, None, None]:
        """Yield the JSON of the value in parts, and None where more text is needed."""
        yield from _waits(comes(source, "\n"))
        if source.starts_with("\n"):
            source.take(1)
        if self._types == {"string"}:
            yield '"'
            for part in self._parts(source):
                yield None if part is None else json.dumps(part, ensure_ascii=False)[1:-1]
            if self.has_closed:
                yield '"'
            return
        parts: list[str] = []
        for part in self._parts(source):
            if part is None:
                yield None
            else:
                parts.append(part)
        if parts or self.has_closed:
            yield json_of("".join(parts), self._types)

    def _parts(self, source: Source) -> Generator[str | None, None, None]:
        """Yield the text of the value in parts."""
        while not self.has_closed:
            at, marker = source.find(VALUE_ENDS, is_text_at_end=False)
            if at:
                yield source.take(at)
            elif marker:
                self.has_closed = yield from _waits(self._closes(source, marker))
                if not self.has_closed:
                    yield source.take(len(marker))
                elif PARAMETER_END in marker:
                    source.take(len(marker))
            elif source.has_ended:
                source.take()  # of an end that was cut off
                return
            else:
                yield None

    def _closes(self, source: Source, marker: str) -> Steps[bool]:
        """Return whether a marker that comes next ends the value."""
        if marker == f"\n{PARAMETER}":
            if (yield from _odd_name(source, len(marker), self._next_names)) is not None:
                return True
            end = yield from place_of(source, ">", LONGEST_HEAD)
            return source.peek()[len(marker) : max(end, 0)].strip() in self._next_names
        at = len(marker)
        space = yield from space_ahead(source, at)
        if at + space == source.size:
            return True
        if marker == f"\n{PARAMETER_END}" and source.starts_with("\n", at):
            return True
        for text in FOLLOW[marker.strip()]:
            if (yield from comes(source, text, at + space)):
                return True
        return False


def _waits(steps: Steps[bool]) -> Generator[None, None, bool]:
    """Run steps that yield no events."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
        yield None
