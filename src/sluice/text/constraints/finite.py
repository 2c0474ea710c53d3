"""Whether a JSON schema describes a value that ends: a definition that requires itself describes none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.text.constraints.schema_tree import References, escaped


def has_finite_value(nodes: Mapping[str, Any], references: References) -> bool:
    """Return whether a schema can be met by a value that ends.

    The least fixed point: a subschema has such a value if those that it needs have one, found before.

    Args:
        nodes: of `subschemas`; the schema is "#".
    """
    finite: set[str] = set()
    open_nodes = [*nodes][::-1]  # inner ones first: most schemas need one pass
    while True:
        left = [pointer for pointer in open_nodes if not _is_finite(pointer, nodes[pointer], references, finite)]
        if "#" in finite:
            return True
        if len(left) == len(open_nodes):
            return False
        open_nodes = left


def _is_finite(pointer: str, node: Any, references: References, finite: set[str]) -> bool:
    """Return whether a subschema has a value that ends by what is known of others, and add it to these if so."""
    ends = not isinstance(node, dict) or _ends(pointer, node, references, finite)
    if ends:
        finite.add(pointer)
    return ends


def _ends(pointer: str, node: Mapping[str, Any], references: References, finite: set[str]) -> bool:
    if "const" in node or "enum" in node:
        return True
    if isinstance(node.get("$ref"), str) and references.target(node["$ref"]) not in finite:
        return False
    options = {keyword: _listed(pointer, node, keyword) for keyword in ("allOf", "anyOf", "oneOf")}
    if not finite.issuperset(options["allOf"]):
        return False
    if any(listed and finite.isdisjoint(listed) for listed in (options["anyOf"], options["oneOf"])):
        return False
    kinds = node.get("type", [])
    kinds = {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
    if not kinds or kinds - {"object", "array"}:
        return True
    return ("object" in kinds and _object_ends(pointer, node, finite)) or (
        "array" in kinds and _array_ends(pointer, node, finite)
    )


def _listed(pointer: str, node: Mapping[str, Any], keyword: str) -> list[str]:
    value = node.get(keyword)
    return [f"{pointer}/{keyword}/{index}" for index in range(len(value))] if isinstance(value, list) else []


def _object_ends(pointer: str, node: Mapping[str, Any], finite: set[str]) -> bool:
    required, properties = node.get("required"), node.get("properties")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    known = properties if isinstance(properties, dict) else {}
    return all(f"{pointer}/properties/{escaped(name)}" in finite for name in names if name in known)


def _array_ends(pointer: str, node: Mapping[str, Any], finite: set[str]) -> bool:
    least = node.get("minItems", 0)
    if not isinstance(least, int) or least <= 0:
        return True
    prefix = _listed(pointer, node, "prefixItems")
    rest_ends = f"{pointer}/items" in finite or not isinstance(node.get("items"), dict)
    return finite.issuperset(prefix[:least]) and (least <= len(prefix) or rest_ends)
