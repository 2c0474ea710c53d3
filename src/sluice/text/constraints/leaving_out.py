"""What llguidance cannot compile of a JSON schema: found by compiling its subschemas one by one, inner ones first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sluice.text.constraints.schema_tree import DEFINITIONS, MAPS, standalone, subschemas

MOST = 256
"""Subschemas that are compiled one by one."""
Problem = Callable[[Any], str | None]
"""Returns why a schema cannot be compiled; None if it can."""


class Culprit(NamedTuple):
    """What cannot be compiled."""

    pointer: str
    """JSON pointer to a keyword, or to a subschema of which no single keyword is at fault."""
    reason: str


def take_out(schema: dict[str, Any], problem: Problem) -> list[Culprit]:
    """Remove from a schema what cannot be compiled, and return it.

    The schema may still not compile: then it as a whole is at fault, or it is very large.
    """
    nodes = [(pointer, node) for pointer, node in subschemas(schema) if isinstance(node, dict)]
    if len(nodes) > MOST:
        return []
    found = []
    for pointer, node in sorted(nodes, key=_inner_first):
        reason = problem(standalone(node, schema))
        if reason is None:
            continue
        keyword = _keyword_at_fault(node, schema, problem)
        found.append(Culprit(pointer if keyword is None else f"{pointer}/{keyword}", reason))
        if keyword is not None:
            del node[keyword]
        elif pointer != "#":
            node.clear()
    return found


def _inner_first(item: tuple[str, Any]) -> tuple[bool, int]:
    """Definitions come first, since others refer to them."""
    steps = item[0].split("/")
    return not set(steps) & set(DEFINITIONS), -len(steps)


def _keyword_at_fault(node: dict[str, Any], root: dict[str, Any], problem: Problem) -> str | None:
    """Return the keyword without which a subschema can be compiled; of several, one that holds no subschemas."""
    for keyword in sorted(node, key=lambda each: (each in MAPS, isinstance(node[each], list | dict), each == "type")):
        rest = {name: value for name, value in node.items() if name != keyword}
        if problem(standalone(rest, root)) is None:
            return keyword
    return None
