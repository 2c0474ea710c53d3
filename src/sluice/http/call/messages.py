"""The messages of a chat, checked and in the form in which chat templates take them.

Clients send back what they were sent, by this server or another, with keys of their own at any depth. So little is
checked: that a role is known, since templates know no others; that content is text, since there is nothing else to
serve; that a call has a name, and arguments of which an object can be made, since templates write both. What else
stands in a message is ignored, and named in the answer's header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from sluice.http.base.body import convert, fields_of, kind_of, known_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.json_bounds import check_contents
from sluice.http.base.unknown_fields import ignore_unknown
from sluice.http.base.unsupported_fields import IN_PARTS
from sluice.http.call.fitting import leading_joined
from sluice.http.call.generate_call import documented
from sluice.http.call.message_parts import called_function, content_of
from sluice.http.call.result_order import in_order_of_calls

MAX_MESSAGES = 10_000
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
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
        "role": {"enum": [*ROLES]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": PART_SCHEMA}, {"type": "null"}]},
        "name": {"type": "string"},
        "tool_call_id": {"type": "string"},
        "tool_calls": {"type": "array", "items": CALL_SCHEMA},
        "reasoning_content": {"type": "string"},
        "reasoning": {"type": "string"},
    },
}
CALL = ("id", "type", "function", "custom")
OF_ASSISTANT = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "thinking")
SHOWN_ROLES: Mapping[str, str] = {"developer": "system", "function": "tool"}
AnyMessage = Annotated[dict[str, Any], documented(**MESSAGE_SCHEMA)]


class Message(msgspec.Struct):
    """A message. `function_call` and the role "function" are OpenAI's former calls of tools."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    refusal: str | None = None
    audio: Any = None
    """An answer that was spoken: its text is not there."""
    reasoning_content: str | None = None
    reasoning: Any = None
    """Another name of `reasoning_content`, as `thinking` is; other servers have an object here, which is ignored."""
    thinking: Any = None


def checked_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return messages as chat templates take them.

    Text parts are joined by line breaks, and so are system messages at the beginning. "developer" becomes "system", the
    JSON text of a tool call's arguments becomes an object (`arguments_of`), and results of tools come in the order of
    their calls (`in_order_of_calls`).

    Raises:
        ApiError: 400, no message, or one whose field is named; 413, arguments of too many values.
    """
    require(bool(messages), "messages must hold at least one message, got []", param="messages")
    message = f"messages may hold at most {MAX_MESSAGES} messages, got {len(messages)}"
    require(len(messages) <= MAX_MESSAGES, message, param="messages")
    check_contents(b",".join(text.encode(errors="surrogatepass") for text in _argument_texts(messages)))
    rendered = [_message(f"messages[{index}]", each) for index, each in enumerate(messages)]
    return leading_joined(in_order_of_calls(rendered))


def _argument_texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the JSON texts in unchecked messages. The bounds on values of a body do not see inside them."""
    for message in messages:
        calls = message.get("tool_calls")
        called = [message.get("function_call")]
        for call in calls if isinstance(calls, list) else ():
            called += [call.get("function"), call.get("custom")] if isinstance(call, dict) else []
        given = (each.get(name) for each in called if isinstance(each, dict) for name in ("arguments", "input"))
        yield from (each for each in given if isinstance(each, str))


def _message(place: str, content: dict[str, Any]) -> dict[str, Any]:
    used = known_fields(content, fields_of(Message), place, IN_PARTS)
    message = convert(used, Message, place, {"role": ", ".join(ROLES)})
    text, thoughts = content_of(message.content, message.role, f"{place}.content")
    rendered: dict[str, Any] = {"role": SHOWN_ROLES.get(message.role, message.role)}
    if message.role == "assistant":
        rendered["content"] = text or message.refusal or ""
        calls = _calls(message, place)
        given = (message.reasoning_content, message.reasoning, message.thinking, thoughts)
        reasoning = next((each for each in given if isinstance(each, str) and each), None)
        others = {"name": message.name, **_reasoning(reasoning, is_before_calls=bool(calls) and not text)}
        rendered |= {"tool_calls": calls} if calls else {}
    else:
        rendered["content"] = text
        ignored = [name for name in OF_ASSISTANT if getattr(message, name)]
        ignore_unknown(ignored, (), place)
        others = {"name": message.name, "tool_call_id": message.tool_call_id}
    return rendered | {name: value for name, value in others.items() if value is not None}


def _reasoning(text: str | None, *, is_before_calls: bool) -> dict[str, str | None]:
    """Return the reasoning of a message under the names that templates have for it.

    Those of gpt-oss read "thinking", and take it only beside calls, and in the place of a text.
    """
    return {"reasoning_content": text, "thinking": text if is_before_calls else None}


def _calls(message: Message, place: str) -> list[dict[str, Any]]:
    calls = enumerate(message.tool_calls or ())
    found = [_tool_call(f"{place}.tool_calls[{index}]", call) for index, call in calls]
    if isinstance(message.function_call, dict) and message.function_call and not found:
        found.append({"type": "function", "function": called_function(f"{place}.function_call", message.function_call)})
    return found


def _tool_call(place: str, call: Any) -> dict[str, Any]:
    """Return a call of a tool. One of a custom tool has a text in the place of arguments."""
    if not isinstance(call, dict):
        raise bad_request(f"{place} must be an object, got {kind_of(call)}", param=place)
    kind = call.get("type") or "function"
    is_known = kind in ("function", "custom")
    require(is_known, f"{place}.type must be function or custom, got {kind!r:.60}", param=f"{place}.type")
    known_fields({name: value for name, value in call.items() if name not in CALL}, frozenset(), place, IN_PARTS)
    function = called_function(f"{place}.{kind}", call.get(kind))
    id = call.get("id")
    require(id is None or isinstance(id, str), f"{place}.id must be a text, got {kind_of(id)}", param=f"{place}.id")
    return {**({"id": id} if id else {}), "type": "function", "function": function}
