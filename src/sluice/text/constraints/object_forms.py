"""The forms that the members of an object may have by a JSON schema: the names, and the schemas of their values.

Formats of calls that write a tag for each argument ask for a form. References, options and parts of a schema are
followed; what a schema says beyond that is left to those who check whole objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.text.constraints.schema_tree import referred

MOST = 32
"""Forms of one schema. Of more, a form is made that allows what any of them does."""
MAX_DEPTH = 32
"""Schemas within each other that are looked at. What is deeper, or refers to itself, allows all."""


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """Members that an object may have. The schemas of a value must all be met."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    patterns: tuple[tuple[str, Any], ...] = ()
    """Regular expressions for names, each with the schema of their values."""
    others: Any = True
    """The schema of members of other names; False: there are none."""

    def schemas(self, name: str) -> tuple[Any, ...]:
        """Return the schemas that a member of a name must meet; False is among them if it may not be there."""
        own = self.properties.get(name, ())
        by_pattern = tuple(schema for pattern, schema in self.patterns if _matches(pattern, name))
        return own + by_pattern or (self.others,)


def forms_of(root: Any) -> list[ObjectForm]:
    """Return the forms of the objects that a schema describes; an empty list if it describes none."""
    return _Reader(root).forms(root, 0)


def schemas_of(forms: Iterable[ObjectForm], name: str) -> list[Any]:
    """Return the schemas that a member of a name has in some forms: it meets one of them."""
    found: list[Any] = []
    for form in forms:
        schema = all_of(form.schemas(name))
        if schema is not False and schema not in found:
            found.append(schema)
    return found


def all_of(schemas: tuple[Any, ...]) -> Any:
    """Return a schema that asks for what all of some do."""
    if False in schemas:
        return False
    asking = [schema for schema in schemas if schema is not True and schema != {}]
    return True if not asking else asking[0] if len(asking) == 1 else {"allOf": asking}


class _Reader:
    """Reads schemas of one root, and each that is referred to once: options of options would be too many."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, list[ObjectForm]] = {}

    def forms(self, node: Any, depth: int) -> list[ObjectForm]:
        if node is False:
            return []
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return [ObjectForm()]
        found = [_own(node)]
        for parts in _parts(node):
            options = _few([form for part in parts for form in self.forms(part, depth + 1)])
            found = _both(found, options)
        reference = node.get("$ref")
        return _both(found, self._forms_at(reference, depth)) if isinstance(reference, str) else found

    def _forms_at(self, reference: str, depth: int) -> list[ObjectForm]:
        if reference not in self._referred:
            self._referred[reference] = [ObjectForm()]  # for one that refers to itself
            self._referred[reference] = self.forms(referred(reference, self._root), depth + 1)
        return self._referred[reference]


def _parts(node: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield lists of schemas: an object meets one of each list."""
    for part in node["allOf"] if isinstance(node.get("allOf"), list) else ():
        yield [part]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(node.get(keyword), list) and node[keyword]:
            yield node[keyword]
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        yield [_only(value) for value in values]


def _both(ones: list[ObjectForm], others: list[ObjectForm]) -> list[ObjectForm]:
    """Return the forms of objects that have one of some, and one of others."""
    merged = (_merged(one, other) for one in ones for other in others)
    return _few([form for form in merged if form is not None])


def _only(value: Any) -> Any:
    """Return the schema of one object; False for a value that is none."""
    if not isinstance(value, dict):
        return False
    properties = {name: {"const": each} for name, each in value.items()}
    return {"properties": properties, "required": [*value], "additionalProperties": False}


def _own(node: Mapping[str, Any]) -> ObjectForm:
    given, required, patterns = (node.get(name) for name in ("properties", "required", "patternProperties"))
    return ObjectForm(
        {name: (schema,) for name, schema in given.items()} if isinstance(given, Mapping) else {},
        tuple(each for each in required if isinstance(each, str)) if isinstance(required, list) else (),
        tuple(patterns.items()) if isinstance(patterns, Mapping) else (),
        node.get("additionalProperties", True),
    )


def _merged(one: ObjectForm, other: ObjectForm) -> ObjectForm | None:
    """Return the form of objects that have both; None if there are none."""
    properties: dict[str, tuple[Any, ...]] = {}
    required = tuple(dict.fromkeys((*one.required, *other.required)))
    for name in dict.fromkeys((*one.properties, *other.properties, *required)):
        schemas = one.schemas(name) + other.schemas(name)
        if False not in schemas:
            properties[name] = schemas
        elif name in required:
            return None
    if not one.patterns and not other.patterns:
        return ObjectForm(properties, required, (), all_of((one.others, other.others)))
    patterns = tuple(dict.fromkeys(pattern for pattern, _ in (*one.patterns, *other.patterns)))
    by_pattern = tuple((each, _of_pattern(each, one, other)) for each in patterns)
    return ObjectForm(properties, required, by_pattern, all_of((one.others, other.others)))


def _of_pattern(pattern: str, one: ObjectForm, other: ObjectForm) -> Any:
    """Return the schema of members whose names match a pattern of one of two forms."""
    return all_of(tuple(dict(form.patterns).get(pattern, form.others) for form in (one, other)))


def _few(forms: list[ObjectForm]) -> list[ObjectForm]:
    """Return forms as they are, or one that allows what any of too many does."""
    if len(forms) <= MOST:
        return forms
    names = dict.fromkeys(name for form in forms for name in form.properties)
    properties = {name: (_any_of(schemas_of(forms, name)),) for name in names}
    required = [name for name in forms[0].required if all(name in form.required for form in forms)]
    has_others = any(form.patterns or form.others is not False for form in forms)
    return [ObjectForm(properties, tuple(required), (), has_others)]


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False
