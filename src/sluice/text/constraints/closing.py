"""Which objects of a JSON schema are closed: those that say nothing of further properties get none.

By the standard, an object that says nothing may have any further properties, and a small model goes on adding some. An
answer without them is as valid, unless the properties of one object are described in several places (`allOf`, or a
`$ref` beside `properties`): closing one would forbid what another describes, so these stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.text.constraints.schema_tree import References

OF_OBJECTS = frozenset(
    ("properties", "required", "patternProperties", "additionalProperties", "minProperties", "maxProperties")
)
IN_PLACE = ("allOf", "anyOf", "oneOf")


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
