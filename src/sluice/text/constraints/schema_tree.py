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
Node = dict[str, Any] | bool


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
