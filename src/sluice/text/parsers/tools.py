"""The tools that a model may call, and which of them it must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

NewId = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """A JSON schema of an object. None: it takes no arguments."""
    strict: bool = False
    """The arguments of every call must fit the schema, also where the model may choose whether to call."""
    place: str = ""
    """Where the request has its parameters, for errors."""
    namespace: str = ""
    """What the name begins with where the API keeps the two apart."""
    is_custom: bool = False
    """It takes a text, which is its one argument here."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the schema of its arguments."""
        return {**(self.parameters or {"properties": {}}), "type": "object"}


class Choice(Enum):
    """Whether the model calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, whichever API it came by."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = Choice.AUTO
    name: str | None = None
    """The one tool that must be called, with REQUIRED."""
    is_parallel: bool = True
    """An answer may hold several calls."""
    allowed: tuple[str, ...] | None = None
    """Names of those that may be called, though the model sees all. None: every one."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Return the tools that the model may call."""
        if self.choice is Choice.NONE:
            return ()
        allowed = {tool.name for tool in self.tools} if self.allowed is None else self.allowed
        return tuple(tool for tool in self.tools if self.name in (None, tool.name) and tool.name in allowed)

    def as_json(self) -> list[dict[str, Any]]:
        """Return all tools in OpenAI's form, which chat templates take. `strict` is none of their business."""
        return [{"type": "function", "function": _function(tool)} for tool in self.tools]


NO_TOOLS = ToolUse()


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = dict(tool.parameters)
    return function
