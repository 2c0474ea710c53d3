"""Keywords of JSON schemas as SDKs spell them: values that ask for nothing, and types by the names of languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPES: Mapping[str, str] = {
    **{name: name for name in ("string", "integer", "number", "boolean", "null", "object", "array")},
    **dict.fromkeys(("str", "text", "char", "uuid", "datetime", "date", "file"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long", "uint", "bigint"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "num"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("none", "nil", "nonetype", "undefined"), "null"),
    **dict.fromkeys(("dict", "map", "record", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "sequence"), "array"),
}
"""Names of types in lower case -> those of JSON Schema. Some SDKs write capitals, others what their language has."""
ANY_TYPES = ("any", "mixed", "unknown", "")
"""Names of types that ask for nothing."""
RANGES: Mapping[str, tuple[int, int]] = {
    f"{'u' * is_unsigned}int{bits}": (0 if is_unsigned else -(1 << bits - 1), (1 << bits - (not is_unsigned)) - 1)
    for bits in (8, 16, 32)
    for is_unsigned in (False, True)
}
"""Formats of integers that are bounds."""
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(COUNTS, (int,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float, bool)),
    **dict.fromkeys(("pattern", "format", "$ref"), (str,)),
    **dict.fromkeys(("enum", "required", "allOf", "anyOf", "oneOf", "prefixItems"), (list,)),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (dict,)),
    **dict.fromkeys(("additionalProperties", "additionalItems"), (dict, bool)),
    "items": (dict, bool, list),
}
"""Keyword -> the types that its value may have."""


def respell(node: dict[str, Any]) -> None:
    """Write what a schema says as JSON Schema does. What asks for nothing is removed."""
    for keyword in [keyword for keyword, value in node.items() if value is None and keyword in KINDS]:
        del node[keyword]
    for keyword in COUNTS:
        value = node.get(keyword)
        if isinstance(value, float) and value.is_integer():
            node[keyword] = int(value)
    if isinstance(node.get("required"), bool):  # draft 3 says it of the property itself
        del node["required"]
    _respell_type(node)
    if node.get("nullable") is True and isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
    kind = node.get("format")
    if node.get("type") in ("integer", "number") and isinstance(kind, str):
        del node["format"]
        if node["type"] == "integer" and kind in RANGES:
            least, most = RANGES[kind]
            node.setdefault("minimum", least)
            node.setdefault("maximum", most)


def misplaced(node: Mapping[str, Any]) -> list[str]:
    """Return the keywords of a schema whose values are of no type that they may have, or name unknown types."""
    found = []
    for keyword, kinds in KINDS.items():
        value = node.get(keyword)
        is_fine = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        if keyword in node and not is_fine:
            found.append(keyword)
    names = node.get("type", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or any(name not in TYPES.values() for name in names):
        found.append("type")
    return found


def _respell_type(node: dict[str, Any]) -> None:
    given = node.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    spelled = ["null" if name is None else _spelled(name) for name in names]
    if "type" in node and (given is None or None in spelled):
        del node["type"]
    elif isinstance(given, str):
        node["type"] = spelled[0]
    elif isinstance(given, list):
        node["type"] = list(dict.fromkeys(spelled)) if all(isinstance(each, str) for each in spelled) else given


def _spelled(name: Any) -> Any:
    """Return a type as JSON Schema names it; None if it is any, and an unknown one as it is."""
    if not isinstance(name, str):
        return name
    return None if name.lower() in ANY_TYPES else TYPES.get(name.lower(), name)
