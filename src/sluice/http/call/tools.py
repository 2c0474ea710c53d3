"""The tools of a request, checked before anything is queued: of chats by `tools_of`, of any API by what that calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from sluice.http.base.body import convert, fields_of, kind_of, known_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.json_bounds import check_nesting
from sluice.http.call.generate_call import documented
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Choice, Tool, ToolUse
from sluice.types.shown import shown

MAX_TOOLS = 512
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
CHOICES = tuple(choice.value for choice in Choice)
TOOL_PROPERTIES = {
    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "description": {"type": "string"},
    "parameters": {"type": "object"},
    "strict": {"type": "boolean"},
}
TOOL_SCHEMA = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": TOOL_PROPERTIES,
        },
    },
}
NAMED_SCHEMA = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}


class ToolFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of chats about tools."""

    tools: Annotated[list[dict[str, Any]], documented(items=TOOL_SCHEMA, maxItems=MAX_TOOLS)] = []
    tool_choice: Annotated[Any, documented(anyOf=[{"enum": [*CHOICES, None]}, NAMED_SCHEMA])] = None
    parallel_tool_calls: bool = True


class ChatTool(msgspec.Struct):
    """A tool as chats have it."""

    function: dict[str, Any]
    type: Literal["function"] = "function"


class ChatFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class NamedFunction(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """A `tool_choice` of one tool."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct):
    """A `tool_choice` of some of the tools."""

    tools: list[dict[str, Any]]
    mode: str = "auto"


def tools_of(fields: ToolFields) -> ToolUse:
    """Return the tools of a chat.

    Raises:
        ApiError: 400, naming the field.
    """
    tools = checked_tools([_tool(f"tools[{index}]", each) for index, each in enumerate(fields.tools)])
    choice, name, allowed = _choice(fields.tool_choice)
    return tool_use(tools, choice, name, is_parallel=fields.parallel_tool_calls, allowed=allowed)


def tool_use(
    tools: tuple[Tool, ...],
    choice: Choice = Choice.AUTO,
    name: str | None = None,
    *,
    is_parallel: bool = True,
    allowed: tuple[str, ...] | None = None,
) -> ToolUse:
    """Return checked tools with a choice among them.

    Args:
        name: of the tool that must be called.
        allowed: names of the tools that may be called; None: all.

    Raises:
        ApiError: 400, the choice needs tools that there are not.
    """
    if choice is Choice.REQUIRED:
        require(bool(tools), "tool_choice needs tools, got none; send tools, or leave it out", param="tool_choice")
    names = [tool.name for tool in tools]
    for each in (() if name is None else (name,)) + (allowed or ()):
        message = f"tool_choice names the tool {shown(each)}; tools has {', '.join(map(repr, names))}"
        require(each in names, message, param="tool_choice")
    require(allowed != (), "tool_choice must allow at least one tool", param="tool_choice")
    return ToolUse(tools, choice, name, is_parallel, allowed)


def checked_tools(tools: Sequence[Tool], *, names: Sequence[str] | None = None) -> tuple[Tool, ...]:
    """Return tools whose names and parameters can be used.

    Args:
        names: where in an item the name and the parameters stand, if not as in chats.

    Raises:
        ApiError: 400, naming the field.
    """
    require(len(tools) <= MAX_TOOLS, f"tools may hold at most {MAX_TOOLS} tools, got {len(tools)}", param="tools")
    name_at, parameters_at = ("function.name", "function.parameters") if names is None else names
    seen: dict[str, int] = {}
    for index, tool in enumerate(tools):
        param = f"tools[{index}].{name_at}"
        what = "1 to 128 letters, digits, _, - or ."
        require(NAME.fullmatch(tool.name) is not None, f"{param} must be {what}, got {tool.name[:64]!r}", param=param)
        other = seen.setdefault(tool.name, index)
        require(other == index, f"{param} {tool.name!r} is the name of tools[{other}], too", param=param)
        _check_parameters(f"tools[{index}].{parameters_at}", tool.parameters)
    return tuple(tools)


def check_readable(use: ToolUse | None, replies: ReplyFormat) -> None:
    """Refuse tools if the calls of the served model cannot be read.

    Raises:
        ApiError: 400.
    """
    if use is None or not use.callable or replies.tools is not None:
        return
    raise bad_request(
        "tools are not supported with this model: its chat template shows no format of calls that is known; start the"
        " server with --tool-call-parser, or send tool_choice: none",
        param="tools",
        code="unsupported",
    )


def _tool(place: str, content: dict[str, Any]) -> Tool:
    given = convert(known_fields(content, fields_of(ChatTool), place, {}), ChatTool, place, {"type": "function"})
    place = f"{place}.function"
    function = convert(known_fields(given.function, fields_of(ChatFunction), place, {}), ChatFunction, place)
    return Tool(function.name, function.description, function.parameters, function.strict, f"{place}.parameters")


def _choice(given: Any) -> tuple[Choice, str | None, tuple[str, ...] | None]:
    if given is None:
        return Choice.AUTO, None, None
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given.get("allowed_tools"), "tool_choice.allowed_tools")
    if isinstance(given, dict):
        return Choice.REQUIRED, convert(given, NamedTool, "tool_choice", {"type": "function"}).function.name, None
    if given in CHOICES:
        return Choice(given), None, None
    got = shown(given) if isinstance(given, str) else kind_of(given)
    example = '{"type": "function", "function": {"name": ...}}'
    raise bad_request(f"tool_choice must be {', '.join(CHOICES)} or {example}, got {got}", param="tool_choice")


def _allowed(given: Any, place: str) -> tuple[Choice, None, tuple[str, ...]]:
    """Return a choice among some of the tools."""
    fields = convert(given, AllowedTools, place)
    require(fields.mode in CHOICES, f"{place}.mode must be auto or required, got {fields.mode!r:.60}", param=place)
    names = (convert(each, NamedTool, f"{place}.tools[{index}]") for index, each in enumerate(fields.tools))
    return Choice(fields.mode), None, tuple(each.function.name for each in names)


def _check_parameters(place: str, schema: Any) -> None:
    """Refuse parameters that are not described by the schema of an object."""
    if not schema:
        return
    check_nesting(schema, place)
    kind, properties, required = (schema.get(name) for name in ("type", "properties", "required"))
    kind, properties, required = kind or "object", properties or {}, required or []
    kinds = [str(each).lower() for each in (kind if isinstance(kind, list) else [kind])]
    require("object" in kinds, f"{place}.type must be 'object', got {kind!r:.60}", param=f"{place}.type")
    is_fine = isinstance(properties, dict) and all(isinstance(each, dict | bool) for each in properties.values())
    param = f"{place}.properties"
    require(is_fine, f"{param} must be an object of schemas, got {kind_of(properties)}", param=param)
    is_fine = isinstance(required, list) and all(isinstance(each, str) for each in required)
    param = f"{place}.required"
    require(is_fine, f"{param} must be a list of names, got {kind_of(required)}", param=param)
