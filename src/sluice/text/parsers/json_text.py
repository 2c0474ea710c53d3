"""Reads JSON from the text of an answer as it comes: where a value ends, and the calls that objects are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sluice.text.constraints.value_types import PYTHON
from sluice.text.parsers.argument_types import ArgumentTypes, Retyped, object_of, text_of
from sluice.text.parsers.events import Event
from sluice.text.parsers.literals import read_python_object
from sluice.text.parsers.parsing import Source, Steps, more, space_ahead

OUTSIDE = re.compile(r"""["{}\[\]]|[^"{}\[\]:,\s\w.+-]""")
"""What matters outside of a string: brackets, the beginning of a string, and what cannot stand in JSON."""
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
UNICODE_BEGIN = re.compile(r"\\u[0-9a-fA-F]{0,3}")
INSIDE = re.compile(r'["\\]')
CLOSES = {"}": "{", "]": "["}
IN_STRING = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
BEHIND = ("<", "`", "]")
"""What may follow an object whose brackets are missing: a tag, a fence, or the end of a list."""


class JsonScanner:
    """Finds the end of a JSON object or list in a text that arrives in pieces. It checks brackets, and no more."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        self._is_escaped = False
        self.is_over = False
        """The value is complete, or went wrong."""
        self.is_complete = False

    @property
    def closing(self) -> str:
        """The brackets that are missing; empty within a string."""
        opened = "" if self._in_string else "".join(self._open)
        return opened[::-1].translate(str.maketrans("{[", "}]"))

    def push(self, text: str) -> int:
        """Return how much of a text belongs to the value. Once that is not all of it, or the value ends, it is over."""
        at = 0
        while at < len(text) and not self.is_over:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (INSIDE if self._in_string else OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = self._after(found[0], found.start())
        return at

    def _after(self, char: str, at: int) -> int:
        if char == "\\" and self._in_string:
            self._is_escaped = True
        elif char == '"':
            self._in_string = not self._in_string
        elif char in "{[":
            self._open.append(char)
        elif char in CLOSES and self._open and self._open[-1] == CLOSES[char]:
            self._open.pop()
            self.is_over = self.is_complete = not self._open
        else:  # it closes what is not open, or is no JSON: the value ends before it
            self.is_over = True
            return at
        return at + 1


class JsonMender:
    """Mends the text of an object that arrives in pieces: raw control characters in strings, backslashes that JSON does
    not have, commas before a closing bracket, and Python's constants."""

    def __init__(self) -> None:
        self._in_string = False
        self._escape = ""
        """A backslash, and what belongs to it."""
        self._held = ""
        """A comma, and the space behind it."""
        self._word = ""
        """Letters outside of strings."""

    def push(self, text: str) -> str:
        """Return what is certain of a text with what was held back before it."""
        found: list[str] = []
        for char in text:
            if self._escape:
                found.append(self._escaped(char))
            elif self._in_string and char == "\\":
                self._escape = char
            elif self._in_string:
                found.append(json.dumps(char)[1:-1] if char < " " else char)
                self._in_string = char != '"'
            elif char.isalpha():
                found.append(self._held)
                self._held = ""
                self._word += char
            else:
                found += self.finish(), self._outside(char)
        return "".join(found)

    def _escaped(self, char: str) -> str:
        escape = self._escape + char
        self._escape = escape if UNICODE_BEGIN.fullmatch(escape) else ""
        if self._escape:
            return ""
        if ESCAPE.fullmatch(escape):
            return escape
        if escape == "\\'":
            return char
        return rf"\\{self.push(escape[1:])}"  # it stands for itself, as in \d and C:\Users

    def _outside(self, char: str) -> str:
        if char == "," or (self._held and char.isspace()):
            self._held += char
            return ""
        held, self._held = self._held, ""
        self._in_string = char == '"'
        return (held[1:] if char in CLOSES else held) + char

    def finish(self) -> str:
        """Return what is held, but for commas."""
        word, self._word = self._word, ""
        escape, self._escape = self._escape, ""
        return PYTHON.get(word, word) + escape


def mended(text: str) -> str:
    """Return a whole object mended."""
    mender = JsonMender()
    return mender.push(text) + mender.finish()


class JsonRead(NamedTuple):
    """How reading an object ended."""

    is_closed: bool
    """The object's brackets are closed: what follows is no part of it."""
    is_valid: bool
    """It is closed, and the JSON of an object."""


def json_events(source: Source, event: Callable[[str], Event], types: ArgumentTypes) -> Steps[JsonRead]:
    """Read the JSON object that comes next, and yield it as events as it comes. It is parsed once, at its end.

    What models get wrong in an object that is clear otherwise is mended: `JsonMender`, `Retyped`, brackets that are
    missing at the end or before a tag, an object as Python writes it, and one that stands in a string.

    Args:
        event: makes an event of a text.
        types: of the object's members.
    """
    if source.starts_with('"'):
        return (yield from _in_string(source, event, types))
    if source.starts_with("{") and source.starts_with("'", 1 + (yield from space_ahead(source, 1))):
        is_valid = yield from read_python_object(source, event, types)
        return JsonRead(is_valid, is_valid)
    scanner, mender, retyped = JsonScanner(), JsonMender(), Retyped(types)
    parts: list[str] = []
    is_over = False
    while not is_over:
        part = retyped.push(mender.push(source.take(scanner.push(source.peek()))))
        if part:
            parts.append(part)
            yield event(part)
        is_over = scanner.is_over or not (yield from more(source))
    if not scanner.is_complete and (rest := retyped.push(mender.finish()) + retyped.finish()):
        parts.append(rest)
        yield event(rest)
    written, closing = "".join(parts), scanner.closing
    is_meant = source.peek()[:1] in BEHIND if source.size else not source.was_cut and written.strip() != "{"
    if not scanner.is_complete and is_meant and object_of(written + closing) is not None:
        yield event(closing)
        return JsonRead(is_closed=True, is_valid=True)
    return JsonRead(scanner.is_complete, scanner.is_complete and object_of(written) is not None)


def _in_string(source: Source, event: Callable[[str], Event], types: ArgumentTypes) -> Steps[JsonRead]:
    """Read an object whose text is a string of JSON, when it has come whole."""
    at = 1
    while True:
        found = source.match(IN_STRING, at)
        at += len(found[0]) if found is not None else 0
        has_ended = source.starts_with('"', at)
        if has_ended or not (yield from more(source)):
            break
    written = source.take(at + 1 if has_ended else None)
    content = text_of(written)
    is_valid = object_of(content) is not None
    yield event(Retyped(types).push(content) if is_valid else written)
    return JsonRead(is_closed=has_ended, is_valid=is_valid)


class JsonCall(NamedTuple):
    """A call as an object of JSON."""

    name: str
    arguments: str
    """JSON text."""


def call_of(text: str, argument_names: Sequence[str]) -> JsonCall | None:
    """Return the call that the text of an object is; None if it is none.

    Args:
        argument_names: names that the member with the arguments may have.
    """
    content = object_of(text) or object_of(mended(text)) or {}
    if isinstance(content.get("function"), dict):
        content = content["function"]
    name = content.get("name", content.get("function"))
    if not isinstance(name, str):
        return None
    given = [content[each] for each in argument_names if content.get(each) is not None]
    others = [value for key, value in content.items() if key not in ("name", "function", "id", "type", *argument_names)]
    if not given and others:  # under another name, if that is clear
        given = others if len(others) == 1 and isinstance(others[0], dict) else [None]
    found: Any = given[0] if given and given[0] not in ("", []) else {}
    if isinstance(found, str):  # some models write the text of the object
        return None if object_of(found) is None else JsonCall(name, found)
    return JsonCall(name, json.dumps(found, ensure_ascii=False)) if isinstance(found, dict) else None
