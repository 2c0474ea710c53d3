"""The items of OpenAI's Responses API in the form of chats, which chat templates take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.http.apis.responses.tools import flat_name
from sluice.http.base.errors import require
from sluice.http.base.json_bounds import check_contents
from sluice.http.base.unknown_fields import ignore
from sluice.http.call.message_parts import arguments_of, content_of, text_of_part
from sluice.http.call.tagged import tagged
from sluice.types.shown import shown

ITEM_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "call_id": {"type": "string"},
        "name": {"type": "string"},
        "arguments": {"type": ["string", "object", "null"]},
        "output": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
    },
}
INPUT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": ITEM_SCHEMA}]}
ROLES = ("user", "assistant", "system", "developer")
Message = dict[str, Any]
Item = dict[str, Any]


class MessageItem(msgspec.Struct):
    role: str
    content: str | list[Any] = ""


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: Any = None
    namespace: str = ""


class CustomCall(msgspec.Struct):
    """A call of a tool that takes any text."""

    call_id: str
    name: str
    input: Any = None
    namespace: str = ""


class Output(msgspec.Struct):
    """The result of a call."""

    call_id: str
    output: Any = ""


class ShellCall(msgspec.Struct):
    """A call of a shell that runs at the client."""

    call_id: str
    action: Any = None


class PatchCall(msgspec.Struct):
    """A change of a file that the client makes."""

    call_id: str
    operation: Any = None


class Reasoning(msgspec.Struct):
    summary: list[Any] = []
    content: list[Any] | None = None


class Skipped(msgspec.Struct):
    """What a tool of OpenAI's servers left in an answer, or the reference to it. It is ignored, and named."""


CALLS = ("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call")
"""Types of calls whose results come as items of their own."""
ITEMS: Mapping[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": FunctionCall,
    "custom_tool_call": CustomCall,
    "reasoning": Reasoning,
    **dict.fromkeys(("local_shell_call", "shell_call"), ShellCall),
    "apply_patch_call": PatchCall,
    **dict.fromkeys((f"{name}_output" for name in CALLS), Output),
}
SKIPPED = (
    *("web_search_call", "file_search_call", "computer_call", "computer_call_output", "code_interpreter_call"),
    *("image_generation_call", "mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("tool_search_call", "tool_search_output", "item_reference", "compaction", "compaction_summary", "ghost_snapshot"),
)


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
    require(bool(found), "input has no item that can be shown to the model", param="input")
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
    kind = item.get("type") if isinstance(item, dict) else None
    if kind in SKIPPED:
        ignore([f"input[].{kind}"])
        return
    match tagged(item, ITEMS, place, default="message"):
        case MessageItem(role, content):
            message = f"{place}.role must be one of {', '.join(ROLES)}, got {shown(role)}"
            require(role in ROLES, message, param=f"{place}.role")
            yield "message", {"role": role, "content": content_of(content, role, f"{place}.content")[0]}
        case FunctionCall(call_id, name, arguments, namespace):
            yield _called(call_id, flat_name(namespace, name), arguments_of(f"{place}.arguments", arguments))
        case CustomCall(call_id, name, text, namespace):
            yield _called(call_id, flat_name(namespace, name), {"input": text or ""})
        case ShellCall(call_id, action):
            yield _called(call_id, str(kind).removesuffix("_call"), arguments_of(f"{place}.action", action, "action"))
        case PatchCall(call_id, operation):
            yield _called(call_id, "apply_patch", arguments_of(f"{place}.operation", operation, "operation"))
        case Output(call_id, output):
            text = content_of(output, "tool", f"{place}.output")[0]
            yield "message", {"role": "tool", "tool_call_id": call_id, "content": text}
        case Reasoning(summary, content):
            text = _joined(content or [], f"{place}.content") or _joined(summary, f"{place}.summary")
            if text:
                yield "reasoning_content", text


def _called(id: str, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "tool_calls", {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _joined(parts: list[Any], place: str) -> str:
    return "\n".join(text_of_part(part, f"{place}[{index}]")[1] for index, part in enumerate(parts))


def listed(items: list[Item], response_id: str) -> list[Item]:
    """Return items as they are listed: each with an id, and messages with a list of parts."""
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(items)]


def _listed(item: Item, tail: str) -> Item:
    kind = item.get("type", "message")
    found = {"id": f"{'msg' if kind == 'message' else 'item'}_{tail}", "type": kind, "status": "completed"} | item
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item["role"] == "assistant" else "input_text"
        found["content"] = [{"type": part, "text": item["content"]}]
    return found
