"""Whether a JSON value is of the kind that a schema describes: types, names, options and their parts.

It tells calls from other objects. Bounds, patterns and formats are not looked at, and a schema that cannot be read
allows all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.text.constraints.keywords import TYPES
from sluice.text.constraints.schema_tree import referred
from sluice.text.constraints.value_types import type_of

MOST = 10_000
"""Pairs of a value and a schema that are looked at. Of more, a value fits nothing."""


def fits(value: Any, schema: Any) -> bool:
    """Return whether a value is of the kind that a schema describes."""
    return _Check(schema).fits(value, schema, frozenset())


class _Check:
    def __init__(self, root: Any) -> None:
        self._root, self._left = root, MOST

    def fits(self, value: Any, schema: Any, seen: frozenset[str]) -> bool:
        """Args:
        seen: references that led here from the same value.
        """
        self._left -= 1
        if not isinstance(schema, Mapping):
            return schema is not False and self._left > 0
        if self._left <= 0 or not _is_of_type(value, schema):
            return False
        reference = schema.get("$ref")
        is_new = isinstance(reference, str) and reference not in seen
        if is_new and not self.fits(value, referred(str(reference), self._root), seen | {str(reference)}):
            return False
        if any(not self.fits(value, part, seen) for part in _listed(schema, "allOf")):
            return False
        for keyword in ("anyOf", "oneOf"):
            options = _listed(schema, keyword)
            if options and not any(self.fits(value, option, seen) for option in options):
                return False
        if isinstance(value, dict):
            return self._has_members(value, schema)
        if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            return all(self.fits(each, schema["items"], frozenset()) for each in value)
        return True

    def _has_members(self, value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
        given = schema.get("properties")
        properties: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        if any(name not in value for name in _listed(schema, "required")):
            return False
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            others = True
        return all(self.fits(each, properties.get(name, others), frozenset()) for name, each in value.items())


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _is_of_type(value: Any, schema: Mapping[str, Any]) -> bool:
    names = schema.get("type")
    names = [names] if isinstance(names, str) else names
    known = {TYPES.get(str(name).lower()) for name in names} if isinstance(names, list) else set()
    if schema.get("nullable") is True:
        known.add("null")
    if known and None not in known:
        own = type_of(value)
        is_whole = own == "number" and (isinstance(value, int) or float(value).is_integer())
        if own not in known and not (is_whole and "integer" in known):
            return False
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    return not isinstance(options, list) or value in options
