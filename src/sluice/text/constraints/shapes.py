"""Shapes of answers, from which grammars are made. They are plain data: a process that checks them receives them."""

from __future__ import annotations

from typing import Any

import msgspec

Mark = str | int
"""What begins or ends a part of an answer: a text, or the id of a special token."""


class _Shape(msgspec.Struct, tag=True, frozen=True):
    pass


class JsonSchema(_Shape, tag=True, frozen=True):
    """A JSON value that a schema describes (draft 2020-12)."""

    schema: Any
    """The schema as an object, true or false, or as JSON text."""
    place: str = ""
    """Where the client wrote it, for errors: `response_format.json_schema.schema`."""
    whitespace_pattern: str | None = None
    """A regular expression for the whitespace that is allowed between the tokens of JSON. None: as `json.dumps`
    writes, one space after each comma and colon, and nothing else."""
    is_lenient: bool = False
    """Keywords and formats that are not supported are left out, where they are refused otherwise."""


class Regex(_Shape, tag=True, frozen=True):
    """A text that a regular expression matches from its beginning to its end. `\\d` is 0 to 9."""

    pattern: str
    place: str = ""


class Choice(_Shape, tag=True, frozen=True):
    """One of some texts."""

    options: tuple[str, ...]
    place: str = ""


class Grammar(_Shape, tag=True, frozen=True):
    """A text of a context-free grammar, in llguidance's variant of Lark (rule `start`) or in GBNF (rule `root`)."""

    text: str
    place: str = ""


class Members(_Shape, tag=True, frozen=True):
    """The members of an object: of each the beginning, its name, the middle, its value, the end and what is behind.

    A value that can only be a text is written as it is, all others are JSON.
    """

    object: JsonSchema
    begin: tuple[Mark, ...]
    middle: tuple[Mark | Regex, ...]
    end: Mark = ""
    behind: str = ""
    separator: str = ""
    """Text between each two."""
    quote: Mark | None = None
    """What stands before texts too, and only around texts. Empty: all values are JSON."""


class Literal(_Shape, tag=True, frozen=True):
    """This text, or the token with this id."""

    text: Mark


class FreeText(_Shape, tag=True, frozen=True):
    """Any text."""

    without: str = ""
    """A text that is not in it."""


class TextUntil(_Shape, tag=True, frozen=True):
    """Any text up to the first `end`, and this too."""

    end: Mark
    at_most: int | None = None
    """Tokens of the text, after which `end` must follow."""


class Sequence(_Shape, tag=True, frozen=True):
    """One shape after the other."""

    items: tuple[Shape, ...]


class AnyOf(_Shape, tag=True, frozen=True):
    """One of some shapes."""

    items: tuple[Shape, ...]


class Repeated(_Shape, tag=True, frozen=True):
    """A shape several times, at least once."""

    item: Shape
    separator: str = ""
    at_most: int | None = None


class Joined(_Shape, tag=True, frozen=True):
    """Some shapes one after the other, of which any may be left out but those that are required."""

    items: tuple[tuple[Shape, bool], ...]
    """Each with whether it is required."""
    separator: str
    """Text between each two that are there."""


class Tag(_Shape, tag=True, frozen=True):
    """A shape between its beginning and its end. With `FreeText` as its content, the first `end` ends it."""

    begin: Mark
    content: Shape
    end: Mark


class Tagged(_Shape, tag=True, frozen=True):
    """Any text with tags in it. Once a trigger is written, one of the tags that begin with it must follow."""

    tags: tuple[Tag, ...]
    triggers: tuple[Mark, ...]
    at_least_one: bool = False
    stops_after_one: bool = False
    """The answer ends with the first tag."""
    place: str = ""


Shape = (JsonSchema | Regex | Choice | Grammar | Members | Literal | FreeText) | (
    TextUntil | Sequence | AnyOf | Repeated | Joined | Tag | Tagged
)
ANY_OBJECT = {"type": "object"}
"""The schema of any JSON object."""


def after_reasoning(answer: Shape, end: Mark, budget: int | None = None) -> Shape:
    """Return the shape of an answer that comes after reasoning.

    Args:
        end: of the reasoning. Up to four characters of whitespace may follow it.
        budget: most tokens of the reasoning; None: any number.
    """
    return Sequence((TextUntil(end, budget), Regex(r"\s{0,4}"), answer))
