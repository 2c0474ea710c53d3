"""The tools of Anthropic's API as those of every API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.http.base.unknown_fields import ignore
from sluice.http.call.tagged import tagged
from sluice.http.call.tools import NAME, checked_tools, tool_use
from sluice.text.parsers.tools import Choice, Tool, ToolUse

TOOL_SCHEMA = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "type": {"const": "custom"},
        "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
        "description": {"type": "string"},
        "input_schema": {"type": "object"},
    },
}
CHOICE_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["auto", "any", "tool", "none"]},
        "name": {"type": "string"},
        "disable_parallel_tool_use": {"type": "boolean"},
    },
}


class CustomTool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool = False


class OpenChoice(msgspec.Struct):
    """A `tool_choice` that names no tool."""

    disable_parallel_tool_use: bool = False


class NamedChoice(msgspec.Struct):
    name: str
    disable_parallel_tool_use: bool = False


HOSTED = re.compile(r"\w+_20\d{6}|mcp_toolset")
"""Types of tools that Anthropic's servers run, or that its models know."""
CUSTOM: Mapping[str, type[msgspec.Struct]] = {"custom": CustomTool}
KINDS: Mapping[str, type[msgspec.Struct]] = {
    **dict.fromkeys(("auto", "any", "none"), OpenChoice),
    "tool": NamedChoice,
}
CHOICES: Mapping[str, Choice] = {
    "auto": Choice.AUTO,
    "any": Choice.REQUIRED,
    "tool": Choice.REQUIRED,
    "none": Choice.NONE,
}


def tools_of(tools: list[dict[str, Any]], choice: str | dict[str, Any] | None) -> ToolUse:
    """Return the tools of a body.

    Raises:
        ApiError: 400, naming the field; a tool that Anthropic's servers would run.
    """
    checked = checked_tools(
        [_tool(f"tools[{index}]", each) for index, each in enumerate(tools) if not _is_hosted(each)],
        names=("name", "input_schema"),
    )
    if choice is None:
        return tool_use(checked)
    choice = {"type": choice} if isinstance(choice, str) else choice
    given = tagged(choice, KINDS, "tool_choice")
    name = given.name if isinstance(given, NamedChoice) else None
    return tool_use(checked, CHOICES[choice["type"]], name, is_parallel=not given.disable_parallel_tool_use)


def _is_hosted(content: dict[str, Any]) -> bool:
    """Return whether a tool is one of Anthropic's own, which the header then names: no schema describes it here."""
    kind = content.get("type")
    is_hosted = isinstance(kind, str) and HOSTED.fullmatch(kind) is not None
    if is_hosted:
        ignore([f"tools[].{kind}"])
    return is_hosted


def _tool(place: str, content: dict[str, Any]) -> Tool:
    given = tagged(content, CUSTOM, place, default="custom")
    return Tool(given.name, given.description, given.input_schema, given.strict, f"{place}.input_schema")
