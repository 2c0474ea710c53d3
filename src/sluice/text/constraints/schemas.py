"""JSON schemas of users as llguidance takes them: checked, with the separators of JSON, and with objects closed.

llguidance makes a grammar of every keyword that it accepts, or refuses the schema. What it would refuse without saying
where, or accept although no answer could ever end, is refused here, by its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.exact_numbers import DIGITS, EXACT, far_bounds, inexact_number
from sluice.text.constraints.finite import has_finite_value
from sluice.text.constraints.keywords import misplaced, respell
from sluice.text.constraints.leaving_out import Problem, take_out
from sluice.text.constraints.schema_tree import OPTIONS, References, subschemas
from sluice.text.constraints.shapes import JsonSchema

MAX_DEPTH = 120
"""Lists and objects inside each other. llguidance reads 128, of which the grammar around it takes a few."""
MAX_VALUES = 1 << 15
"""Values of a schema, names included."""
SEPARATORS: Mapping[str, Any] = MappingProxyType(
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
)
"""The options that llguidance takes in `x-guidance`, for JSON as `json.dumps` writes it."""
FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
ANY_TEXT = frozenset(("binary", "byte", "password", "path", "file-path", "directory-path"))
"""Formats that ask for nothing that a grammar could hold an answer to."""
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "not": (False,),
        "if": (),
        "then": (),
        "else": (),
        "uniqueItems": (False,),
        "contains": (True, {}),
        "minContains": (),
        "maxContains": (),
        "dependencies": ({},),
        "dependentRequired": ({},),
        "dependentSchemas": ({},),
        "propertyNames": (True, {}, {"type": "string"}),
        "unevaluatedItems": (True, {}),
        "unevaluatedProperties": (True, {}),
        "$dynamicRef": (),
        "$recursiveRef": (),
    }
)
"""Keyword -> the values with which it asks for nothing."""

OF_OBJECTS = frozenset(
    ("properties", "required", "patternProperties", "additionalProperties", "minProperties", "maxProperties")
)
IN_PLACE = ("allOf", "anyOf", "oneOf")

SMALL = 1e-6
"""Amount by which a bound is moved, unless the range is smaller."""


def prepared_schema(shape: JsonSchema, dropped: list[str], problem: Problem | None = None) -> dict[str, Any]:
    """Return the schema of a shape as llguidance takes it.

    Args:
        dropped: receives the places of what a lenient schema asks for and is left out.
        problem: returns why a schema cannot be compiled. None: it is not known whether it can.

    Raises:
        ConstraintError: it is no schema, too large, refers to what is not in it, has a keyword that is not supported,
            or describes no finite value.
    """
    return _Preparation(shape, dropped, problem).schema()


class _Preparation:
    def __init__(self, shape: JsonSchema, dropped: list[str], problem: Problem | None) -> None:
        self._shape, self._dropped, self._problem = shape, dropped, problem

    def schema(self) -> dict[str, Any]:
        schema = self._parsed()
        self._check_size(schema)
        for _, node in subschemas(schema):
            if isinstance(node, dict):
                respell(node)
        nodes = dict(subschemas(schema))
        references = References(nodes)
        for pointer, node in nodes.items():
            self._check_node(pointer, node, references)
        if not has_finite_value(nodes, references):
            raise self._error("#", "it describes no value that ends: what it requires requires itself")
        for pointer in closed_objects(nodes, references):
            nodes[pointer]["additionalProperties"] = False
        return self._mended(self._with_options(schema))

    def _mended(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema without what cannot be compiled, or refuse it by its place."""
        culprits = [] if self._problem is None else take_out(schema, self._problem)
        if culprits and not self._shape.is_lenient:
            raise self._error(*culprits[0])
        self._dropped += [self._place(culprit.pointer) for culprit in culprits]
        return schema

    def _parsed(self) -> Any:
        """Return the schema as JSON values of its own, which may be changed."""
        given = self._shape.schema
        try:
            schema = json.loads(given if isinstance(given, str) else json.dumps(given))
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error("#", f"the schema is not JSON: {error or 'it is nested too deeply'}") from error
        if not isinstance(schema, dict | bool):
            raise self._error("#", f"a schema must be an object, true or false, got {json.dumps(schema)[:60]}")
        return schema

    def _check_size(self, schema: Any) -> None:
        level, values = [schema], 0
        for _ in range(MAX_DEPTH + 1):
            values += len(level)
            if values > MAX_VALUES:
                raise self._error("#", f"the schema has more than {MAX_VALUES} values, the most that are accepted")
            level = [
                item
                for value in level
                if isinstance(value, dict | list)
                for item in (value.values() if isinstance(value, dict) else value)
            ]
            if not level:
                return
        raise self._error("#", f"the schema is nested more than {MAX_DEPTH} levels deep")

    def _check_node(self, pointer: str, node: Any, references: References) -> None:
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            raise self._error(pointer, f"a schema must be an object, true or false, got {json.dumps(node)[:60]}")
        for keyword in misplaced(node):
            self._leave_out(pointer, node, keyword, f"{keyword} cannot be {json.dumps(node[keyword])[:60]}")
        for keyword in node.keys() & UNSUPPORTED.keys():
            self._leave_out(pointer, node, keyword, f"the keyword {keyword!r} is not supported")
        kind = node.get("format")
        if isinstance(kind, str) and kind not in FORMATS:
            reason = f"the format {kind!r} is not supported; supported are {', '.join(sorted(FORMATS))}"
            self._leave_out(pointer, node, "format", reason)
        self._check_numbers(pointer, node)
        reference = node.get("$ref")
        if isinstance(reference, str):
            self._check_reference(pointer, reference, references)

    def _check_numbers(self, pointer: str, node: dict[str, Any]) -> None:
        for keyword in node.keys() & {"const", "enum"}:
            number = inexact_number(node[keyword])
            if number is not None:
                reason = f"{keyword} has the number {number}, which an answer would not have exactly; accepted are"
                accepted = f"integers from -{EXACT} to {EXACT}, numbers of at most {DIGITS} digits, and strings"
                raise self._error(pointer, f"{reason} {accepted}")
        for keyword in far_bounds(node):
            self._leave_out(pointer, node, keyword, f"{keyword} {node[keyword]} is too far from zero to be held to")
        move_excluded_bounds(node)

    def _leave_out(self, pointer: str, node: dict[str, Any], keyword: str, reason: str) -> None:
        """Remove a keyword that asks for nothing, or that a lenient schema may ask for in vain."""
        value = node[keyword]
        nothing = ANY_TEXT if keyword == "format" else UNSUPPORTED.get(keyword, ())
        asks = value not in tuple(nothing)
        if asks and not self._shape.is_lenient:
            raise self._error(pointer, reason)
        if asks:
            self._dropped.append(self._place(f"{pointer}/{keyword}"))
        del node[keyword]

    def _check_reference(self, pointer: str, reference: str, references: References) -> None:
        if not reference.startswith("#"):
            raise self._error(
                pointer,
                f"$ref {reference[:80]!r} is not in the schema, and nothing is fetched; accepted are references into"
                " it, such as '#/$defs/name'",
            )
        if references.target(reference) is None:
            raise self._error(pointer, f"$ref {reference[:80]!r} names no schema in here")

    def _with_options(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """Return a schema with the options of its whitespace; those that it has itself count."""
        if schema is False:
            raise self._error("#", "the schema false allows no value")
        if schema is True:
            schema = {}
        own = schema.get(OPTIONS, {})
        if not isinstance(own, dict):
            raise self._error("#", f"{OPTIONS} must be an object of options, got {json.dumps(own)[:60]}")
        options = dict(SEPARATORS)
        pattern = self._shape.whitespace_pattern
        if pattern is not None or _changes_whitespace(own):
            options = {"item_separator": ",", "key_separator": ":"}
        if pattern is not None:
            options["whitespace_pattern"] = pattern
        lenient = {"coerce_one_of": True} if self._shape.is_lenient else {}
        return {**schema, OPTIONS: {**options, **lenient, **own}}

    def _place(self, pointer: str) -> str:
        """Return where a subschema stands, as a path."""
        steps = [step for step in pointer.split("/")[1:] if step]
        return ".".join(step for step in (self._shape.place, *steps) if step)

    def _error(self, pointer: str, reason: str) -> ConstraintError:
        return ConstraintError(self._place(pointer), reason)


def _changes_whitespace(options: Collection[str]) -> bool:
    return bool({"whitespace_pattern", "whitespace_flexible"} & set(options))


def closed_objects(nodes: Mapping[str, Any], references: References) -> list[str]:
    """Return the pointers of the objects to close.

    Args:
        nodes: of `subschemas`.
    """
    shared: set[str] = set()
    waiting = [part for pointer, node in nodes.items() for part in _parts_of_shared(pointer, node, references)]
    while waiting:  # what is described in several places is so in all parts of each
        pointer = waiting.pop()
        if pointer not in shared:
            shared.add(pointer)
            waiting += _parts(pointer, nodes[pointer], references)
    return [pointer for pointer, node in nodes.items() if pointer not in shared and _is_closable(node)]


def _parts(pointer: str, node: Any, references: References) -> Iterator[str]:
    """Yield the subschemas that describe the same value as a schema."""
    if not isinstance(node, dict):
        return
    for keyword in IN_PLACE:
        if isinstance(node.get(keyword), list):
            yield from (f"{pointer}/{keyword}/{index}" for index in range(len(node[keyword])))
    target = references.target(node["$ref"]) if isinstance(node.get("$ref"), str) else None
    if target is not None:
        yield target


def _parts_of_shared(pointer: str, node: Any, references: References) -> Iterator[str]:
    """Yield these subschemas if another one, or the schema itself, describes the properties of the value as well."""
    if not isinstance(node, dict):
        return
    places = sum(len(node[keyword]) if keyword == "allOf" else 1 for keyword in (*IN_PLACE, "$ref") if keyword in node)
    if places > 1 or (places and OF_OBJECTS & node.keys()):
        yield from _parts(pointer, node, references)


def _is_closable(node: Any) -> bool:
    if not isinstance(node, dict) or not isinstance(node.get("properties"), dict):
        return False
    if {"additionalProperties", "patternProperties", "$ref", *IN_PLACE} & node.keys():
        return False
    required, least = node.get("required", []), node.get("minProperties", 0)
    is_listed = isinstance(required, list) and set(map(str, required)) <= node["properties"].keys()
    return is_listed and isinstance(least, int | float) and least <= len(node["properties"])


def move_excluded_bounds(node: dict[str, Any]) -> None:
    """Move those bounds of a schema that are excluded whole numbers."""
    if node.get("type") == "integer":
        return
    low, high = _number(node, "exclusiveMinimum"), _number(node, "exclusiveMaximum")
    least, most = _number(node, "minimum"), _number(node, "maximum")
    top = min(math.inf if high is None else high, math.inf if most is None else most)
    bottom = max(-math.inf if low is None else low, -math.inf if least is None else least)
    if low is not None and low == bottom and _is_near(low, top - low):
        node["exclusiveMinimum"] = low + min(SMALL, (top - low) / 16)
    if high is not None and high == top and _is_near(high, high - bottom):
        node["exclusiveMaximum"] = high - min(SMALL, (high - bottom) / 16)


def _number(node: dict[str, Any], keyword: str) -> float | None:
    value = node.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_near(bound: float, distance: float) -> bool:
    return float(bound).is_integer() and 0 < distance < 1
