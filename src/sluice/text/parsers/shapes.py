"""Answers that call tools, as shapes to which the engine keeps a model: it must write what a format's parser reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sluice.text.constraints.shapes import (
    AnyOf,
    JsonSchema,
    Literal,
    Mark,
    Regex,
    Repeated,
    Sequence,
    Shape,
    Tag,
    Tagged,
)

TokenId = Callable[[str], int | None]
"""Returns the id of an added token; None if a text is none."""
EMPTY = Literal("")


class ShapedTool(NamedTuple):
    """A tool, and the shape of its arguments."""

    name: str
    arguments: JsonSchema


class Speller:
    """Writes texts of a format as shapes. Markers that the tokenizer has as tokens are given by their ids.

    Args:
        markers: of the format.
    """

    def __init__(self, markers: Iterable[str], token_id: TokenId) -> None:
        self._ids = {marker: id for marker in markers if (id := token_id(marker)) is not None}
        self._pattern = re.compile("|".join(map(re.escape, self._ids)) or "(?!)")

    def has_token(self, marker: str) -> bool:
        return marker in self._ids

    def mark(self, marker: str) -> Mark:
        """Return a marker as a token, if it is one, else as a text."""
        return self._ids.get(marker, marker)

    def texts(self, text: str) -> list[Shape]:
        """Return a text, in which markers may stand."""
        found: list[Shape] = []
        at = 0
        for match in self._pattern.finditer(text):
            found += [Literal(text[at : match.start()])] if match.start() > at else []
            found.append(Literal(self._ids[match[0]]))
            at = match.end()
        return found + ([Literal(text[at:])] if at < len(text) else [])

    def sequence(self, *parts: str | Shape) -> Sequence:
        """Return texts and shapes one after the other."""
        items: list[Shape] = []
        for part in parts:
            items += self.texts(part) if isinstance(part, str) else [part]
        return Sequence(tuple(items))


def one_of(shapes: Iterable[Shape]) -> Shape:
    """Return one of some shapes, of which there is at least one."""
    every = tuple(shapes)
    return every[0] if len(every) == 1 else AnyOf(every)


def several(one: Shape, separator: str, *, is_parallel: bool) -> Shape:
    """Return a call, or several."""
    return Repeated(one, separator) if is_parallel else one


def optional(shape: Shape) -> Shape:
    return AnyOf((EMPTY, shape))


def ended(calls: Shape, after: str) -> Shape:
    """Return calls with what models write behind the last one before they stop, as a regular expression."""
    return Sequence((calls, Regex(after))) if after else calls


def text_with(calls: Iterable[Sequence], marker: Mark, *, is_parallel: bool) -> Tagged:
    """Return any text with calls in it, each of which begins with a marker."""
    tags = []
    for call in calls:
        first, *rest = call.items
        assert isinstance(first, Literal), "a call begins with a marker"
        tags.append(Tag(first.text, Sequence(tuple(rest)), ""))
    return Tagged(tuple(tags), (marker,), stops_after_one=not is_parallel)


def json_object(tool: ShapedTool, arguments_name: str) -> tuple[str, JsonSchema, str]:
    """Return a call as a JSON object, in parts. Names of tools need no escapes."""
    return f'{{"name": "{tool.name}", "{arguments_name}": ', tool.arguments, "}"


def json_list(tools: Iterable[ShapedTool], begin: str, end: str, speller: Speller, *, is_parallel: bool) -> Sequence:
    """Return calls as a list of JSON objects between two texts."""
    one = one_of(speller.sequence(*json_object(tool, "arguments")) for tool in tools)
    return speller.sequence(f"{begin}[", several(one, ", ", is_parallel=is_parallel), f"]{end}")
