"""The members of an object in other notations than JSON: as shapes of smaller ones.

Where a value that can only be a text stands as it is, and ends with its tag, only `enum` and `const` are kept of what a
schema says about texts. Other values are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.object_forms import ObjectForm, all_of, forms_of
from sluice.text.constraints.schema_tree import referred, standalone
from sluice.text.constraints.shapes import (
    AnyOf,
    Joined,
    JsonSchema,
    Literal,
    Members,
    Regex,
    Repeated,
    Sequence,
    Shape,
    TextUntil,
)
from sluice.text.constraints.value_types import spelling_of, type_of, types_of

ANY_NAME = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"
"""Names of members that a schema does not list."""
NOTHING = Literal("")
ANY_TEXT = Regex("(?s:.*)")
"""Stands for a text without bounds."""
ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "type"))
"""Keywords beside options that ask for nothing, or for what the types of a value say already."""
MAX_DEPTH = 8
"""Options within options that are told apart."""


def members_shape(members: Members, root: Any) -> Shape:
    """Return the shape of members.

    Args:
        root: the schema of the object, prepared.

    Raises:
        ConstraintError: no object can have what the schema asks for.
    """
    found = [shape for form in forms_of(root) if (shape := _form(form, members, root)) is not None]
    if not found:
        raise ConstraintError(members.object.place, "no object has what it asks for")
    return found[0] if len(found) == 1 else AnyOf(tuple(found))


def _form(form: ObjectForm, members: Members, root: Any) -> Shape | None:
    """Return the shape of the members of a form; None if a required one cannot be."""
    parts: list[tuple[Shape, bool]] = []
    for name in dict.fromkeys((*form.properties, *form.required)):
        value = _value(form.schemas(name), members, root, name)
        if value is not None:
            one = Sequence((*map(Literal, members.begin), Literal(name), *_middle(members), value))
            parts.append((one, name in form.required))
        elif name in form.required:
            return None
    others = [_named(_of_pattern(pattern), (schema,), members, root) for pattern, schema in form.patterns]
    others.append(_named(ANY_NAME, (form.others,), members, root))
    allowed = tuple(each for each in others if each is not None)
    if allowed:
        parts.append((Repeated(AnyOf(allowed), members.separator), False))
    return Joined(tuple(parts), members.separator) if parts else NOTHING


def _named(pattern: str, schemas: tuple[Any, ...], members: Members, root: Any) -> Shape | None:
    """Return the shape of a member whose name a regular expression matches; None if there is none."""
    value = _value(schemas, members, root, "")
    if value is None:
        return None
    return Sequence((*map(Literal, members.begin), Regex(pattern), *_middle(members), value))


def _middle(members: Members) -> tuple[Shape, ...]:
    return tuple(each if isinstance(each, Regex) else Literal(each) for each in members.middle)


def _of_pattern(pattern: str) -> str:
    """Return a regular expression for the whole of a name, from one that is found somewhere in it."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    middle = pattern[begins : len(pattern) - ends]
    rest = "[A-Za-z0-9_.-]*"
    return f"{'' if begins else rest}({middle}){'' if ends else rest}"


def _value(schemas: tuple[Any, ...], members: Members, root: Any, name: str) -> Shape | None:
    """Return the shape of a value, with its end; None if there is none that meets the schemas."""
    schema = all_of(schemas)
    types = frozenset[str]() if schema is False else types_of(schema, root)
    place = f"{members.object.place}.properties.{name}" if name else members.object.place
    if not types:
        return None
    if members.quote == "" or (members.quote is not None and types != {"string"}):
        return JsonSchema(standalone(schema, root), place, is_lenient=True)

    def options(schema: Any, depth: int) -> list[Shape]:
        """Return the shapes of what a schema allows. All are read by the types that the whole value may have."""
        own = types & (frozenset[str]() if schema is False else types_of(schema, root))
        if "string" not in own:
            return [JsonSchema(standalone(schema, root), place, is_lenient=True)] if own else []
        if not isinstance(schema, Mapping):
            return [ANY_TEXT]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return [Literal(spelling_of(value, types)) for value in values if type_of(value) in own]
        inner = _inner(schema, root) if depth < MAX_DEPTH else None
        return [ANY_TEXT] if inner is None else [shape for each in inner for shape in options(each, depth + 1)]

    found = options(schema, 0)
    if not found:
        return None
    whole = (TextUntil(members.end),) if ANY_TEXT in found else (AnyOf(tuple(found)), Literal(members.end))
    before = () if members.quote is None else (Literal(members.quote),)
    return Sequence((*before, *whole, *((Literal(members.behind),) if members.behind else ())))


def _inner(schema: Mapping[str, Any], root: Any) -> list[Any] | None:
    """Return the schemas that a schema is one of, if it says nothing else; None: it is not made of others."""
    asking = schema.keys() - ANNOTATIONS
    if asking == {"$ref"}:
        return [referred(schema["$ref"], root)]
    if len(asking) == 1 and asking <= {"anyOf", "oneOf"}:
        return list(schema[asking.pop()])
    return None
