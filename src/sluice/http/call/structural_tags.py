"""Structural tags, as SGLang and vLLM take them: text with tags in it, and what each tag holds.

There are two forms: the older has `structures` and `triggers`, the other a `format` that is composed of smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sluice.http.base.body import convert, fields_of, kind_of, known_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.unsupported_fields import Accepted
from sluice.text.constraints.shapes import (
    AnyOf,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeated,
    Sequence,
    Shape,
    Tag,
    Tagged,
)

UNSUPPORTED: Mapping[str, Accepted] = {"any_order": (), "excludes": (), "max_chars": (), "style": ("json",)}
"""Fields of xgrammar's formats by which an answer would be another one, with the values that ask for nothing."""
MAX_PARTS = 256
"""Formats inside a structural tag."""
MAX_NESTING = 16


class _Structure(msgspec.Struct, kw_only=True):
    begin: str
    end: str
    schema: Any = None


class _Structures(msgspec.Struct, kw_only=True):
    structures: list[dict[str, Any]]
    triggers: list[str]
    type: str = ""


class _Typed(msgspec.Struct, kw_only=True):
    """A format, by its type."""

    type: str


class _Value(_Typed, kw_only=True):
    value: str


class _JsonSchema(_Typed, kw_only=True):
    json_schema: Any


class _Pattern(_Typed, kw_only=True):
    pattern: str


class _Grammar(_Typed, kw_only=True):
    grammar: str


class _Elements(_Typed, kw_only=True):
    elements: list[dict[str, Any]]


class _Tag(msgspec.Struct, kw_only=True):
    begin: str
    content: dict[str, Any]
    end: str
    type: str = "tag"


class _Tags(_Typed, kw_only=True):
    tags: list[dict[str, Any]]
    triggers: list[str] = []
    separator: str = ""
    at_least_one: bool = False
    stop_after_first: bool = False


def structural_tag(value: Any, place: str) -> Shape:
    """Return the shape of a structural tag, which is an object or its JSON text.

    Raises:
        ApiError: 400, naming the field.
    """
    content = value
    if isinstance(value, str):
        try:
            content = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_request(f"{place} must be a structural tag as JSON: {error}", param=place) from error
    require(
        isinstance(content, dict), f"{place} must be an object or its JSON text, got {kind_of(content)}", param=place
    )
    if "format" in content:
        kept = known_fields(content, frozenset(("format", "type")), place, {})
        return _Reader().shape(kept.get("format"), f"{place}.format", 0)
    return _older(_fields(content, _Structures, place), place)


def _older(fields: _Structures, place: str) -> Shape:
    message = f"{place}.structures may hold from 1 to {MAX_PARTS} structures, got {len(fields.structures)}"
    require(1 <= len(fields.structures) <= MAX_PARTS, message, param=f"{place}.structures")
    require(bool(fields.triggers), f"{place}.triggers must hold at least one text", param=f"{place}.triggers")
    tags = []
    for index, content in enumerate(fields.structures):
        at = f"{place}.structures[{index}]"
        structure = _fields(content, _Structure, at)
        schema = True if structure.schema is None else structure.schema
        tags.append(Tag(structure.begin, JsonSchema(schema, f"{at}.schema"), structure.end))
    return Tagged(tuple(tags), tuple(fields.triggers), place=place)


def _fields(content: Any, kind: type[Any], place: str) -> Any:
    require(isinstance(content, dict), f"{place} must be an object, got {kind_of(content)}", param=place)
    return convert(known_fields(content, fields_of(kind), place, UNSUPPORTED), kind, place)


class _Reader:
    """Reads the formats of one structural tag, of which there may be so many."""

    def __init__(self) -> None:
        self._num_parts = 0
        self._readers: Mapping[str, Callable[[Any, str, int], Shape]] = MappingProxyType(
            {
                "const_string": lambda content, place, _: Literal(_fields(content, _Value, place).value),
                "json_schema": self._schema,
                "regex": lambda content, place, _: Regex(_fields(content, _Pattern, place).pattern, f"{place}.pattern"),
                "grammar": lambda content, place, _: Grammar(
                    _fields(content, _Grammar, place).grammar, f"{place}.grammar"
                ),
                "any_text": self._text,
                "sequence": lambda content, place, depth: Sequence(self._elements(content, place, depth)),
                "or": lambda content, place, depth: AnyOf(self._elements(content, place, depth)),
                "tag": self._tag,
                "triggered_tags": self._triggered,
                "tags_with_separator": self._separated,
            }
        )

    def shape(self, content: Any, place: str, depth: int) -> Shape:
        """Return the shape of a format."""
        require(isinstance(content, dict), f"{place} must be an object, got {kind_of(content)}", param=place)
        self._num_parts += 1
        message = f"{place} may hold at most {MAX_PARTS} formats, {MAX_NESTING} inside each other"
        require(self._num_parts <= MAX_PARTS and depth <= MAX_NESTING, message, param=place)
        kind = content.get("type")
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            known = ", ".join(self._readers)
            got = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
            raise bad_request(f"{place}.type must be one of {known}, got {got}", param=f"{place}.type")
        return reader(content, place, depth + 1)

    def _schema(self, content: Any, place: str, depth: int) -> Shape:
        return JsonSchema(_fields(content, _JsonSchema, place).json_schema, f"{place}.json_schema")

    def _text(self, content: Any, place: str, depth: int) -> Shape:
        _fields(content, _Typed, place)
        return FreeText()

    def _elements(self, content: Any, place: str, depth: int) -> tuple[Shape, ...]:
        elements = _fields(content, _Elements, place).elements
        require(bool(elements), f"{place}.elements must hold at least one format", param=f"{place}.elements")
        return tuple(self.shape(each, f"{place}.elements[{index}]", depth) for index, each in enumerate(elements))

    def _tag(self, content: Any, place: str, depth: int) -> Tag:
        fields = _fields(content, _Tag, place)
        return Tag(fields.begin, self.shape(fields.content, f"{place}.content", depth), fields.end)

    def _tags(self, fields: _Tags, place: str, depth: int) -> tuple[Tag, ...]:
        require(bool(fields.tags), f"{place}.tags must hold at least one tag", param=f"{place}.tags")
        return tuple(self._tag(each, f"{place}.tags[{index}]", depth) for index, each in enumerate(fields.tags))

    def _triggered(self, content: Any, place: str, depth: int) -> Shape:
        fields = _fields(content, _Tags, place)
        require(bool(fields.triggers), f"{place}.triggers must hold at least one text", param=f"{place}.triggers")
        tags = self._tags(fields, place, depth)
        return Tagged(tags, tuple(fields.triggers), fields.at_least_one, fields.stop_after_first, place)

    def _separated(self, content: Any, place: str, depth: int) -> Shape:
        fields = _fields(content, _Tags, place)
        tags = AnyOf(self._tags(fields, place, depth))
        several = Repeated(tags, fields.separator, 1 if fields.stop_after_first else None)
        return several if fields.at_least_one else AnyOf((several, Literal("")))
