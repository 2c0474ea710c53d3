"""Calls of tools in an answer, as the formats of models have them in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

from sluice.text.parsers.argument_types import ArgumentTypes, Retyped
from sluice.text.parsers.events import ArgumentsDelta, CallBegun, CallEnded, TextDelta
from sluice.text.parsers.json_text import JsonScanner, call_of, json_events
from sluice.text.parsers.parsing import Source, Steps, Waits, comes, more, place_of, size_of, space_ahead, until
from sluice.text.parsers.tools import NewId, Tool

JSON_BEGIN = '{"name"'
"""What calls begin with that are JSON without a tag."""
LONGEST_HEAD = 512
"""Characters within which the arguments of a call begin that has its name before them."""
NAMESPACE = "functions."
"""What some models write before the names of all tools, in formats that have it not, too."""
FENCE = "```"
LANGUAGE = re.compile(r"\w*\s*")
HELD = re.compile(rf'(?:{FENCE}\w*\s*)?"?$')
"""What may stand before arguments that a format has without it: a fence, or the quote of a string that holds them."""
TAIL = re.compile(r"\s*[,}]")
"""What may follow the arguments in an object that is a call."""


class Calls:
    """Numbers the calls of one answer.

    Args:
        tools: those that may be called.
        new_id: makes the id of a call.
        is_parallel: there may be more than one. Otherwise what looks like a second one is text.
    """

    def __init__(self, tools: Iterable[Tool], new_id: NewId, *, is_parallel: bool = True) -> None:
        self.is_parallel = is_parallel
        self.tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._count = 0

    def types(self, name: str) -> ArgumentTypes:
        """Return the types of a tool's arguments."""
        return ArgumentTypes(self.tools[name].schema)

    def begin(self, name: str) -> CallBegun | None:
        """Return the event of another call; None if there is no such tool, so that what looks like a call is text."""
        known = name if name in self.tools else name.removeprefix(NAMESPACE)
        if known not in self.tools or (self._count and not self.is_parallel):
            return None
        self._count += 1
        return CallBegun(self._count - 1, self._new_id(), known)


def text_and_calls(
    source: Source, markers: Sequence[str], read: Callable[[str], Steps[bool]], *, after_call: bool = False
) -> Steps[None]:
    """Read an answer of text and calls, until its end.

    Space between text and a call, and between two calls, belongs to neither.

    Args:
        markers: texts with which calls begin.
        read: reads what stands behind a marker. False: that is no call, and nothing was read; the marker is text.
        after_call: a call was read before.
    """
    space = ""
    while True:
        found = yield from until(source, markers, space=space)
        if not found.marker:
            if found.space and (found.has_text or not after_call):
                yield TextDelta(found.space)
            return
        space, after_call = "", (yield from read(found.marker))
        if not after_call and is_cut_head(source):
            source.take()
        elif not after_call:
            yield TextDelta(found.space + found.marker)


def is_cut_head(source: Source) -> bool:
    """Return whether what is left is the beginning of a call at most: the answer was cut off before its arguments."""
    return source.has_ended and source.was_cut and source.size <= LONGEST_HEAD


def is_cut_json(source: Source) -> bool:
    """Return the same of a call that is JSON without a tag."""
    text = re.sub(r"\s", "", source.peek()[: len(JSON_BEGIN) * 2]).removeprefix("[")
    return is_cut_head(source) and len(text) > 1 and text[: len(JSON_BEGIN)] == JSON_BEGIN[: len(text)]


def read_json_call(source: Source, calls: Calls, at: int, argument_names: Sequence[str]) -> Steps[bool]:
    """Read a call that is a JSON object with the members "name" and one of some names for its arguments.

    If these are its first two members, the arguments are yielded as they come.

    Args:
        at: characters of space that precede the object, and what follows them has come. They are read with it.

    Returns:
        False: it is no call of a known tool, and nothing was read.
    """
    if not source.starts_with("{", at):
        return False
    head = _head(tuple(argument_names))
    is_python = source.starts_with("'", at + 1 + (yield from space_ahead(source, at + 1)))
    scanner, end = JsonScanner(), at
    may_match = True
    while True:
        # Where the head is too long, only what is new is looked at: the work for each token must not grow.
        found = source.match(head, at, LONGEST_HEAD + 1) if may_match else None
        if found is not None:
            break
        may_match = source.size - at <= LONGEST_HEAD
        if is_python and not may_match:
            return False
        end += 0 if is_python else scanner.push(source.peek(end))
        if scanner.is_over:
            is_call = scanner.is_complete and (yield from _whole_call(source, calls, at, end, argument_names))
            if is_call:
                yield from skip_texts(source, "}")
            return is_call
        if not (yield from more(source)):
            return False
    name = found[2] or _name(found[1])
    begun = None if name is None else calls.begin(name)
    if begun is None:
        return False
    source.take(at + len(found[0]))
    yield begun
    read = yield from json_events(source, partial(ArgumentsDelta, begun.index), calls.types(begun.name))
    yield CallEnded(begun.index, read.is_valid)
    if read.is_closed:
        yield from _skip_rest(source)
        yield from skip_texts(source, "}")  # some models close what is closed
    return True


def read_json_calls(
    source: Source, calls: Calls, at: int, argument_names: Sequence[str], separators: str
) -> Steps[bool]:
    """Read calls that are JSON objects, or a list of such objects.

    Args:
        separators: characters of which one may stand between two of them, besides space; in a list, a comma may.

    Returns:
        False: there is no call of a known tool at first, and nothing was read.
    """
    is_list = source.starts_with("[", at)
    if is_list:
        at += 1 + (yield from space_ahead(source, at + 1))
    if not (yield from read_json_call(source, calls, at, argument_names)):
        return False
    while True:
        space = yield from space_ahead(source)
        for each in "," if is_list else separators:
            if (yield from comes(source, each, space)):
                space += 1
                space += yield from space_ahead(source, space)
                break
        if is_list and (yield from comes(source, "]", space)):
            source.take(space + 1)
            return True
        if not (yield from read_json_call(source, calls, space, argument_names)):
            return True


def read_headed_call(source: Source, calls: Calls, head: re.Pattern[str], closing: Sequence[str] = ()) -> Steps[bool]:
    """Read a call whose name stands before the JSON object of its arguments.

    Args:
        head: matches all that precedes the object; its group "name" is the name.
        closing: texts behind the object; where one stands in its place, there are no arguments.

    Returns:
        False: it is no call of a known tool, and nothing was read.
    """
    at = yield from place_of(source, "{", LONGEST_HEAD)
    bare = head.match(source.peek()[:LONGEST_HEAD])
    if bare is not None and any(source.starts_with(text, bare.end()) for text in closing):
        begun = calls.begin(bare["name"])
        if begun is None:
            return False
        source.take(bare.end())
        yield from (begun, ArgumentsDelta(begun.index, "{}"), CallEnded(begun.index, True))
        return True
    before = source.peek()[: max(at, 0)]
    found = head.fullmatch(before.removesuffix('"')) or head.fullmatch(HELD.sub("", before))
    begun = None if found is None else calls.begin(found["name"])
    if found is None or begun is None:
        return False
    source.take(at - before.endswith('"'))
    yield begun
    read = yield from json_events(source, partial(ArgumentsDelta, begun.index), calls.types(begun.name))
    yield CallEnded(begun.index, read.is_valid)
    yield from skip_texts(source, "}" if read.is_valid else "", FENCE if found.end() < at else "")
    return True


def fence_ahead(source: Source) -> Waits[int]:
    """Return how many characters of space come next, and of the beginning of a fence behind it, without reading."""
    at = yield from space_ahead(source)
    if (yield from comes(source, FENCE, at)):
        at += len(FENCE)
        at += yield from size_of(source, LANGUAGE, at)
    return at


def skip_texts(source: Source, *texts: str) -> Steps[None]:
    """Read texts that close a call, and the space before each, as far as they come."""
    for text in filter(None, texts):
        space = yield from space_ahead(source)
        if (yield from comes(source, text, space)):
            source.take(space + len(text))
        elif source.has_ended and space < source.size and text.startswith(source.peek(space)):
            source.take()  # of a text that was cut off


def _whole_call(source: Source, calls: Calls, begin: int, end: int, argument_names: Sequence[str]) -> Steps[bool]:
    call = call_of(source.peek()[begin:end], argument_names)
    begun = None if call is None else calls.begin(call.name)
    if call is None or begun is None:
        return False
    source.take(end)
    yield begun
    yield ArgumentsDelta(begun.index, Retyped(calls.types(begun.name)).push(call.arguments))
    yield CallEnded(begun.index, True)
    return True


def _skip_rest(source: Source) -> Steps[None]:
    """Read the rest of an object whose arguments were read: its end, and members that mean nothing."""
    space = yield from space_ahead(source)
    if source.match(TAIL) is None:
        return
    source.take(space)
    scanner = JsonScanner()
    scanner.push("{")
    while True:
        source.take(scanner.push(source.peek()))
        if scanner.is_over or not (yield from more(source)):
            return


@cache
def _head(argument_names: tuple[str, ...]) -> re.Pattern[str]:
    """Return what an object that is a call begins with, as JSON or Python has it, up to the object of its arguments."""
    text = r'"(?:[^"\\]|\\.)*"'
    names = "|".join(map(re.escape, argument_names))
    json_head = rf'"name"\s*:\s*({text})\s*,\s*"(?:{names})"'
    python_head = rf"'name'\s*:\s*'([\w.-]+)'\s*,\s*'(?:{names})'"
    return re.compile(rf"\{{\s*(?:{json_head}|{python_head})\s*:\s*(?=\{{)", re.DOTALL)


def _name(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except ValueError:
        return None
