"""The messages of a chat, checked and in the form in which chat templates take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from sluice.http.base.body import convert, fields_of, known_fields
from sluice.http.base.errors import ApiError, bad_request, require
from sluice.http.base.json_bounds import check_contents, check_nesting
from sluice.http.base.unsupported_fields import IN_PARTS
from sluice.http.call.generate_call import documented
from sluice.http.call.result_order import in_order_of_calls

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
        "reasoning": {"type": "string"},
    },
}
MESSAGE_ACCEPTS = {"role": "system, developer, user, assistant, tool", "type": "text"}
CALL_ACCEPTS = {"type": "function"}
ROLE_OF = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}
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
    reasoning: str | None = None
    """Another name of `reasoning_content`."""


def checked_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return messages as chat templates take them.

    Text parts are joined by line breaks, "developer" becomes "system", the JSON text of a tool call's arguments
    becomes an object (`arguments_of`), and results of tools come in the order of their calls (`in_order_of_calls`).

    Raises:
        ApiError: 400, no message, or one whose field is named; 413, arguments of too many values.
    """
    require(bool(messages), "messages must hold at least one message, got []", param="messages")
    message = f"messages may hold at most {MAX_MESSAGES} messages, got {len(messages)}"
    require(len(messages) <= MAX_MESSAGES, message, param="messages")
    check_contents(b",".join(text.encode(errors="surrogatepass") for text in _argument_texts(messages)))
    return tuple(in_order_of_calls([_message(f"messages[{index}]", each) for index, each in enumerate(messages)]))


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
    used = known_fields(content, fields_of(Message), place, IN_PARTS)
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
    others = {"name": message.name, "tool_call_id": message.tool_call_id, **_reasoning(message, rendered)}
    return rendered | {name: value for name, value in others.items() if value is not None}


def _reasoning(message: Message, rendered: dict[str, Any]) -> dict[str, str | None]:
    """Return the reasoning of a message under the names that templates have for it.

    Those of gpt-oss read "thinking", and take it only beside calls, and in the place of a text.
    """
    text = _thoughts(message)
    is_before_calls = bool(message.tool_calls) and not rendered["content"]
    return {"reasoning_content": text, "thinking": text if is_before_calls else None}


def _text(message: Message, place: str) -> str:
    content = message.content
    if content is None:
        is_fine = message.role == "assistant" and bool(message.tool_calls or _thoughts(message))
        what = "a text or a list of text parts; only an assistant's message with tool_calls may leave it out"
        require(is_fine, f"{place}.content is required: {what}", param=f"{place}.content")
        return ""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _thoughts(message: Message) -> str | None:
    return message.reasoning if message.reasoning_content is None else message.reasoning_content


def _tool_call(place: str, content: dict[str, Any]) -> dict[str, Any]:
    call = convert(content, ToolCall, place, CALL_ACCEPTS)
    arguments = arguments_of(f"{place}.function.arguments", call.function.arguments)
    function = {"name": call.function.name, "arguments": arguments}
    rendered = {"type": call.type, "function": function}
    return rendered if call.id is None else {"id": call.id} | rendered


def arguments_of(place: str, given: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a call as an object: templates write them as JSON, or one by one.

    A text that is no JSON of an object, or of one that templates cannot take, is the argument "arguments" of it: models
    write such calls, and are to see them where a client asks for a better one.

    Raises:
        ApiError: 400, a text that is no Unicode, or an object that is nested too deeply or holds too large an integer.
    """
    if isinstance(given, str):
        return _parsed(place, given) if given else {}
    check_nesting(given or {}, place)
    return given or {}


def _parsed(place: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
        check_nesting(found, place)
    except UnicodeError as error:
        raise bad_request(f"{place} must be Unicode text: {error}; got {text!r}", param=place) from error
    except (msgspec.DecodeError, RecursionError, ApiError):
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
