"""The items of OpenAI's Responses API in the form of chats, which chat templates take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.http.base.errors import require
from sluice.http.base.json_bounds import check_contents
from sluice.http.call.messages import arguments_of
from sluice.http.call.tagged import tagged

ITEM_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"enum": ["message", "function_call", "function_call_output", "reasoning"]},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "call_id": {"type": "string"},
        "name": {"type": "string"},
        "arguments": {"type": "string"},
        "output": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
    },
}
INPUT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": ITEM_SCHEMA}]}
ROLES = ("user", "assistant", "system", "developer")
Message = dict[str, Any]
Item = dict[str, Any]


class MessageItem(msgspec.Struct):
    role: str
    content: str | list[Any]


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(msgspec.Struct):
    call_id: str
    output: str | list[Any]


class Reasoning(msgspec.Struct):
    summary: list[Any] = []
    content: list[Any] | None = None


class TextPart(msgspec.Struct):
    text: str


class RefusalPart(msgspec.Struct):
    refusal: str


ITEMS: Mapping[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": Reasoning,
}
PARTS: Mapping[str, type[msgspec.Struct]] = {
    "input_text": TextPart,
    "output_text": TextPart,
    "text": TextPart,
    "refusal": RefusalPart,
}
THOUGHTS: Mapping[str, type[msgspec.Struct]] = {"reasoning_text": TextPart, "text": TextPart}
SUMMARIES: Mapping[str, type[msgspec.Struct]] = {"summary_text": TextPart}


def items_of(given: str | list[Any]) -> list[Item]:
    """Return the input of a body as a list of items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return given


def chat_messages(items: list[Item], instructions: str | None, num_earlier: int = 0) -> list[Message]:
    """Return items as the messages of a chat.

    A text of the assistant's, its reasoning before it and its calls behind it are one message.

    Args:
        num_earlier: items at the beginning that earlier responses brought.

    Raises:
        ApiError: 400, naming the item and the field; 413, arguments of too many values.
    """
    arguments = (item.get("arguments") for item in items if isinstance(item, dict))
    check_contents(b",".join(each.encode(errors="surrogatepass") for each in arguments if isinstance(each, str)))
    found: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for index, item in enumerate(items):
        place = f"input[{index - num_earlier}]" if index >= num_earlier else f"previous_response_id[{index}]"
        for name, value in _parts_of(item, place):
            last = found[-1] if found else {}
            if name == "message":
                if _continues(last, value):
                    last["content"] = value["content"]
                else:
                    found.append(value)
                continue
            if last.get("role") != "assistant" or (name == "reasoning_content" and _has_more(last)):
                last = {"role": "assistant", "content": ""}
                found.append(last)
            if name == "tool_calls":
                last.setdefault(name, []).append(value)
            else:
                last[name] = value
    return found


def _continues(last: Message, message: Message) -> bool:
    """Return whether a text is that of the assistant's message before it, which has only reasoning so far."""
    is_open = last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")
    return is_open and message["role"] == "assistant" and "reasoning_content" in last


def _has_more(message: Message) -> bool:
    """Return whether a message of the assistant's has what reasoning precedes."""
    return bool(message.get("content") or message.get("tool_calls") or message.get("reasoning_content"))


def _parts_of(item: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield what an item adds: a message, or a field of the assistant's message."""
    checked = tagged(item, ITEMS, place, default="message")
    match checked:
        case MessageItem(role, content):
            message = f"{place}.role must be one of {', '.join(ROLES)}, got {role!r}"
            require(role in ROLES, message, param=f"{place}.role")
            yield "message", {"role": role, "content": _text(content, f"{place}.content", PARTS)}
        case FunctionCall(call_id, name, arguments):
            function = {"name": name, "arguments": arguments_of(f"{place}.arguments", arguments)}
            yield "tool_calls", {"id": call_id, "type": "function", "function": function}
        case FunctionCallOutput(call_id, output):
            text = _text(output, f"{place}.output", PARTS)
            yield "message", {"role": "tool", "tool_call_id": call_id, "content": text}
        case Reasoning(summary, content):
            text = _text(content or [], f"{place}.content", THOUGHTS)
            text = text or _text(summary, f"{place}.summary", SUMMARIES)
            if text:
                yield "reasoning_content", text


def _text(content: str | list[Any], place: str, kinds: Mapping[str, type[msgspec.Struct]]) -> str:
    """Return a text, or the texts of parts, joined by line breaks."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, each in enumerate(content):
        part = tagged(each, kinds, f"{place}[{index}]")
        texts.append(part.refusal if isinstance(part, RefusalPart) else part.text)
    return "\n".join(texts)


def listed(items: list[Item], response_id: str) -> list[Item]:
    """Return items as they are listed: each with an id, and messages with a list of parts."""
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(items)]


def _listed(item: Item, tail: str) -> Item:
    kind = item.get("type", "message")
    found = {"id": f"{'msg' if kind == 'message' else 'item'}_{tail}", "type": kind, "status": "completed"} | item
    if kind == "message" and isinstance(item["content"], str):
        part = "output_text" if item["role"] == "assistant" else "input_text"
        found["content"] = [{"type": part, "text": item["content"]}]
    return found
