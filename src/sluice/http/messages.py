"""The messages of a chat, checked and in the form in which chat templates take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from sluice.http import unsupported_fields
from sluice.http.body import convert, fields_of, known_fields
from sluice.http.errors import bad_request, require
from sluice.http.generate_call import documented
from sluice.http.json_bounds import check_contents, check_nesting

MAX_MESSAGES = 10_000
PART_SCHEMA = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
CALL_SCHEMA = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}
MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": PART_SCHEMA}, {"type": "null"}]},
        "name": {"type": "string"},
        "tool_call_id": {"type": "string"},
        "tool_calls": {"type": "array", "items": CALL_SCHEMA},
        "reasoning_content": {"type": "string"},
    },
}
MESSAGE_ACCEPTS = {"role": "system, developer, user, assistant, tool", "type": "text"}
CALL_ACCEPTS = {"type": "function"}
ROLE_OF = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool"}
"""The role of messages that may have a field."""
AnyMessage = Annotated[dict[str, Any], documented(**MESSAGE_SCHEMA)]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool. Unknown fields (`index`) are what clients repeat from streams."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message. Only one of the assistant's may lack `content`: it called a tool, or was cut off in its reasoning."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning_content: str | None = None


def checked_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return messages as chat templates take them.

    Text parts are joined by line breaks, "developer" becomes "system", and the JSON text of a tool call's arguments
    becomes an object.

    Raises:
        ApiError: 400, no message, or one whose field is named; 413, arguments of too many values.
    """
    require(bool(messages), "messages must hold at least one message, got []", param="messages")
    message = f"messages may hold at most {MAX_MESSAGES} messages, got {len(messages)}"
    require(len(messages) <= MAX_MESSAGES, message, param="messages")
    check_contents(b",".join(text.encode(errors="surrogatepass") for text in _argument_texts(messages)))
    return tuple(_message(f"messages[{index}]", each) for index, each in enumerate(messages))


def _argument_texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the JSON texts in unchecked messages. The bounds on values of a body do not see inside them."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _message(place: str, content: dict[str, Any]) -> dict[str, Any]:
    used = known_fields(content, fields_of(Message), unsupported_fields.MESSAGE, place)
    message = convert(used, Message, place, MESSAGE_ACCEPTS)
    for name, role in ROLE_OF.items():
        is_fine = message.role == role or not getattr(message, name)
        refusal = f"{place}.{name} is only allowed with role {role}, got {message.role}"
        require(is_fine, refusal, param=f"{place}.{name}")
    rendered: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    rendered["content"] = _text(message, place)
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        rendered["tool_calls"] = [_tool_call(f"{place}.tool_calls[{index}]", call) for index, call in calls]
    others = {name: getattr(message, name) for name in ("name", "tool_call_id", "reasoning_content")}
    return rendered | {name: value for name, value in others.items() if value is not None}


def _text(message: Message, place: str) -> str:
    content = message.content
    if content is None:
        is_fine = message.role == "assistant" and bool(message.tool_calls or message.reasoning_content)
        what = "a text or a list of text parts; only an assistant's message with tool_calls may leave it out"
        require(is_fine, f"{place}.content is required: {what}", param=f"{place}.content")
        return ""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _tool_call(place: str, content: dict[str, Any]) -> dict[str, Any]:
    call = convert(content, ToolCall, place, CALL_ACCEPTS)
    function = {"name": call.function.name, "arguments": _arguments(f"{place}.function.arguments", call.function)}
    rendered = {"type": call.type, "function": function}
    return rendered if call.id is None else {"id": call.id} | rendered


def _arguments(place: str, function: Function) -> dict[str, Any]:
    """Return the arguments of a call as an object: templates write them as JSON, or one by one."""
    given = function.arguments or {}
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            message = f"{place} must be the JSON text of an object: {error}; got {function.arguments!r}"
            raise bad_request(message, param=place) from error
    if not isinstance(given, dict):
        raise bad_request(
            f'{place} must be the JSON text of an object, as \'{{"city": "Ulm"}}\'; got {function.arguments!r}',
            param=place,
        )
    check_nesting(given, place)
    return given
