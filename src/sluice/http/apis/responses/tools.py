"""The tools of OpenAI's Responses API as those of every API.

A tool of a namespace has a flat name for the model. A custom tool takes a text: for the model, an object with an
`input`. Tools that OpenAI's servers run are left out, and named in the answer's header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.http.base.body import kind_of
from sluice.http.base.errors import bad_request, require
from sluice.http.base.unknown_fields import ignore
from sluice.http.call.tagged import tagged
from sluice.http.call.tools import CHOICES, TOOL_PROPERTIES, ChatFunction, checked_tools, tool_use
from sluice.text.parsers.tools import Choice, Tool, ToolUse
from sluice.types.shown import shown

TOOL_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string"}, **TOOL_PROPERTIES},
}
CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": [*CHOICES]},
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["function", "custom", "allowed_tools"]}, "name": {"type": "string"}},
        },
    ]
}
INPUT = "input"
"""The argument of a custom tool."""
INPUT_OF_CUSTOM = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
HOSTED = (
    *("web_search", "file_search", "code_interpreter", "computer", "image_generation", "mcp", "local_shell", "shell"),
    *("apply_patch", "tool_search"),
)
"""What the types of tools begin with that no schema describes here: servers of OpenAI run them, or know them."""


class CustomTool(msgspec.Struct):
    name: str
    description: str | None = None
    format: Any = None


class Namespace(msgspec.Struct):
    name: str
    tools: list[dict[str, Any]]
    description: str | None = None


class NamedTool(msgspec.Struct):
    name: str
    namespace: str = ""


class AllowedTools(msgspec.Struct):
    tools: list[Any]
    mode: str = "auto"


TOOLS: Mapping[str, type[msgspec.Struct]] = {
    "function": ChatFunction,
    "custom": CustomTool,
    "namespace": Namespace,
}
NAMED: Mapping[str, type[msgspec.Struct]] = {
    "function": NamedTool,
    "custom": NamedTool,
    "allowed_tools": AllowedTools,
}


def tools_of(tools: list[dict[str, Any]], choice: Any, *, is_parallel: bool) -> ToolUse:
    """Return the tools of a body.

    Raises:
        ApiError: 400, naming the field.
    """
    found = [tool for index, each in enumerate(tools) for tool in _tools(f"tools[{index}]", each)]
    checked = checked_tools(found, names=("name", "parameters"))
    if isinstance(choice, dict):
        return _chosen(checked, choice, is_parallel=is_parallel)
    got = shown(choice) if isinstance(choice, str) else kind_of(choice)
    message = f"tool_choice must be {', '.join(CHOICES)} or an object that names a function, got {got}"
    require(isinstance(choice, str) and choice in CHOICES, message, param="tool_choice")
    return tool_use(checked, Choice(choice), is_parallel=is_parallel)


def _chosen(tools: tuple[Tool, ...], choice: dict[str, Any], *, is_parallel: bool) -> ToolUse:
    if _is_hosted(choice.get("type")):
        ignore(["tool_choice"])
        return tool_use(tools, is_parallel=is_parallel)
    given = tagged(choice, NAMED, "tool_choice")
    if isinstance(given, NamedTool):
        name = flat_name(given.namespace, given.name)
        return tool_use(tools, Choice.REQUIRED, name, is_parallel=is_parallel)
    place = "tool_choice.mode"
    require(given.mode in CHOICES, f"{place} must be auto or required, got {given.mode!r:.60}", param=place)
    listed = (each for each in given.tools if isinstance(each, dict) and not _is_hosted(each.get("type")))
    allowed = tuple(flat_name(str(each.get("namespace") or ""), str(each.get("name"))) for each in listed)
    return tool_use(tools, Choice(given.mode), allowed=allowed, is_parallel=is_parallel)


def tools_json(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools as responses repeat them: those of a body, a function with every field."""
    empty = {"description": None, "parameters": None, "strict": False}
    return [empty | each if each.get("type") == "function" else each for each in given]


def _is_hosted(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(HOSTED)


def _tools(place: str, content: dict[str, Any], namespace: str = "") -> Iterator[Tool]:
    kind = content.get("type")
    if _is_hosted(kind):
        ignore([f"tools[].{kind}"])
        return
    given = tagged(content, TOOLS, place)
    match given:
        case Namespace(name, tools):
            if namespace:
                raise bad_request(f"{place} is a namespace in a namespace, {shown(namespace)}", param=place)
            for index, each in enumerate(tools):
                yield from _tools(f"{place}.tools[{index}]", each, name)
        case CustomTool(name, description):
            if isinstance(given.format, dict) and given.format.get("type") == "grammar":
                ignore([f"{place}.format"])
            yield Tool(
                flat_name(namespace, name),
                description,
                INPUT_OF_CUSTOM,
                place=place,
                namespace=namespace,
                is_custom=True,
            )
        case ChatFunction(name, description, parameters, strict):
            yield Tool(
                flat_name(namespace, name), description, parameters, strict, f"{place}.parameters", namespace=namespace
            )


SEPARATOR = "__"
"""Between a namespace and a name, as in the names that clients of MCP make."""


def flat_name(namespace: str, name: str) -> str:
    """Return the name of a tool as the model sees it."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name
