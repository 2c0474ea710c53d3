"""The tools of OpenAI's Responses API as those of every API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.http.base.body import kind_of
from sluice.http.base.errors import require
from sluice.http.call.tagged import tagged
from sluice.http.call.tools import CHOICES, TOOL_PROPERTIES, ChatFunction, NamedFunction, checked_tools, tool_use
from sluice.text.parsers.tools import Choice, Tool, ToolUse

TOOL_SCHEMA = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"const": "function"}, **TOOL_PROPERTIES},
}
CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": [*CHOICES]},
        {
            "type": "object",
            "required": ["type", "name"],
            "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
        },
    ]
}


TOOLS: Mapping[str, type[msgspec.Struct]] = {"function": ChatFunction}
NAMED: Mapping[str, type[msgspec.Struct]] = {"function": NamedFunction}


def tools_of(tools: list[dict[str, Any]], choice: Any, *, is_parallel: bool) -> ToolUse:
    """Return the tools of a body.

    Raises:
        ApiError: 400, naming the field; a tool that OpenAI's servers would run.
    """
    checked = checked_tools(
        "tools", [_tool(f"tools[{index}]", each) for index, each in enumerate(tools)], names=("name", "parameters")
    )
    if isinstance(choice, dict):
        name = tagged(choice, NAMED, "tool_choice").name
        return tool_use(checked, Choice.REQUIRED, name, is_parallel=is_parallel)
    shown = repr(choice) if isinstance(choice, str) else kind_of(choice)
    message = f"tool_choice must be {', '.join(CHOICES)} or an object that names a function, got {shown}"
    require(isinstance(choice, str) and choice in CHOICES, message, param="tool_choice")
    return tool_use(checked, Choice(choice), is_parallel=is_parallel)


def tools_json(use: ToolUse) -> list[dict[str, Any]]:
    """Return tools as responses repeat them."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": None if tool.parameters is None else dict(tool.parameters),
            "strict": tool.strict,
        }
        for tool in use.tools
    ]


def _tool(place: str, content: dict[str, Any]) -> Tool:
    given = tagged(content, TOOLS, place)
    return Tool(given.name, given.description, given.parameters, given.strict, f"{place}.parameters")
