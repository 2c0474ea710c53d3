"""JSON schemas as trees: their subschemas by JSON pointer, and what local references mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords that hold a list of schemas."""
MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords that hold schemas by name."""
SINGLE = ("items", "additionalItems", "additionalProperties")
"""Keywords that hold a schema. `items` may be a list, too, as in older drafts."""
DEFINITIONS = ("$defs", "definitions")
OPTIONS = "x-guidance"
"""The options of llguidance, at the root of a schema."""
OF_ROOT = (*DEFINITIONS, OPTIONS, "$anchor", "$id")
"""Keywords that mean nothing, or something else, where a schema stands under another name."""


def subschemas(node: Any, pointer: str = "#") -> Iterator[tuple[str, Any]]:
    """Yield a schema and all its subschemas, each with its JSON pointer. What stands in their places is no schema."""
    waiting = [(pointer, node)]
    while waiting:
        pointer, node = waiting.pop()
        yield pointer, node
        if isinstance(node, dict):
            waiting += [*_inner(pointer, node)][::-1]


def _inner(pointer: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in node.items():
        place = f"{pointer}/{keyword}"
        if keyword in LISTS or (keyword == "items" and isinstance(value, list)):
            items = value if isinstance(value, list) else []
            yield from ((f"{place}/{index}", item) for index, item in enumerate(items))
        elif keyword in MAPS:
            named = value if isinstance(value, dict) else {}
            yield from ((f"{place}/{escaped(name)}", item) for name, item in named.items())
        elif keyword in SINGLE:
            yield place, value


def escaped(name: str) -> str:
    """Return a name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


class References:
    """What the local references of a schema mean: pointers into it, and its anchors.

    Args:
        nodes: of `subschemas`.
    """

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._anchors = {
            node["$anchor"]: pointer
            for pointer, node in nodes.items()
            if isinstance(node, dict) and isinstance(node.get("$anchor"), str)
        }

    def target(self, reference: str) -> str | None:
        """Return the pointer of what a reference means; None if it is not a schema in here."""
        pointer = "#" + "/".join(escaped(unescaped(step)) for step in unquote(reference[1:]).split("/"))
        if pointer in self._nodes:
            return pointer
        return self._anchors.get(reference[1:])


def unescaped(step: str) -> str:
    """Return the name that a step of a JSON pointer means."""
    return step.replace("~1", "/").replace("~0", "~")


def referred(reference: str, root: Any) -> Any:
    """Return what a reference means in a schema that was not checked; True, which allows all, if it is not in there."""
    if not reference.startswith("#"):
        return True
    if not reference.startswith("#/") and reference != "#":
        nodes = dict(subschemas(root))
        pointer = References(nodes).target(reference)
        return True if pointer is None else nodes[pointer]
    found = root
    for step in map(unescaped, unquote(reference[1:]).split("/")[1:]):
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step[:9]) < len(found):
            found = found[int(step)]
        else:
            return True
    return found


def standalone(node: Any, root: Any) -> Any:
    """Return a subschema of a checked schema as a schema of its own, with what it refers to in its `$defs`."""
    names: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    own = _renamed(node, names)
    while len(definitions) < len(names):
        reference = [*names][len(definitions)]
        definitions[names[reference]] = _renamed(referred(reference, root), names)
    return {**own, "$defs": definitions} if definitions else own


def _renamed(node: Any, names: dict[str, str]) -> Any:
    """Return a schema whose references are by new names.

    Args:
        names: reference -> the name of what it means. Receives those that are new.
    """
    if not isinstance(node, dict):
        return node
    found = {keyword: value for keyword, value in node.items() if keyword not in OF_ROOT}
    for keyword, value in found.items():
        if keyword in MAPS and isinstance(value, dict):
            found[keyword] = {name: _renamed(each, names) for name, each in value.items()}
        elif (keyword in LISTS or keyword == "items") and isinstance(value, list):
            found[keyword] = [_renamed(each, names) for each in value]
        elif keyword in SINGLE:
            found[keyword] = _renamed(value, names)
        elif keyword == "$ref" and isinstance(value, str):
            found[keyword] = f"#/$defs/{names.setdefault(value, str(len(names)))}"
    return found
