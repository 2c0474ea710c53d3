"""The messages of Anthropic's API in the form of chats, which chat templates take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.http.base.body import convert, fields_of, known_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.unknown_fields import ignore
from sluice.http.call.message_parts import arguments_of, content_of
from sluice.http.call.tagged import tagged
from sluice.types.shown import shown

TEXT_BLOCK_SCHEMA = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}},
        },
    ]
}
MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": CONTENT_SCHEMA},
}
BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""What Claude Code puts in front of its system prompt. It differs in each request, so that no prefix would be found."""
FAILED = "Error: "
"""What the model reads before the result of a call that failed: chat templates have no field for that."""
Message = dict[str, Any]


class TextBlock(msgspec.Struct):
    text: str = ""


class Thinking(msgspec.Struct):
    thinking: str = ""
    signature: str = ""


class RedactedThinking(msgspec.Struct):
    data: str = ""


class ToolUse(msgspec.Struct):
    id: str
    name: str
    input: Any = None


class ToolReference(msgspec.Struct):
    """The name of a tool that a search has found."""

    tool_name: str


class ToolResult(msgspec.Struct):
    tool_use_id: str
    content: Any = ""
    is_error: bool = False


class Turn(msgspec.Struct):
    """A message. Anthropic's clients may send instructions of the system between the others."""

    role: str
    content: str | list[Any] = ""


SKIPPED = re.compile(r"server_tool_use|mcp_tool_use|container_upload|compaction|\w+_tool_result")
"""Types of blocks that tools of Anthropic's servers leave in an answer. They are ignored, and named."""
TEXTS: Mapping[str, type[msgspec.Struct]] = {"text": TextBlock}
OF_RESULT: Mapping[str, type[msgspec.Struct]] = {**TEXTS, "tool_reference": ToolReference}
OF_USER: Mapping[str, type[msgspec.Struct]] = {**TEXTS, "tool_result": ToolResult}
OF_ASSISTANT: Mapping[str, type[msgspec.Struct]] = {
    **TEXTS,
    "tool_use": ToolUse,
    "thinking": Thinking,
    "redacted_thinking": RedactedThinking,
}
ROLES: Mapping[str, Mapping[str, type[msgspec.Struct]]] = {"user": OF_USER, "assistant": OF_ASSISTANT, "system": TEXTS}


def chat_messages(messages: list[dict[str, Any]], system: str | list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a body as those of a chat.

    Blocks of text are joined by line breaks. A result of a tool is a message of its own. Turns of one role that follow
    each other are one turn.

    Raises:
        ApiError: 400, naming the field.
    """
    require(bool(messages), "messages must hold at least one message, got []", param="messages")
    found: list[Message] = []
    text = _joined(system, "system", TEXTS)
    instructions = BILLING_LINE.sub("", text)
    if instructions:
        found.append({"role": "system", "content": instructions})
    for index, each in enumerate(messages):
        for message in _turn(each, f"messages[{index}]"):
            if found and _are_one_turn(found[-1], message):
                found[-1]["content"] += f"\n{message['content']}"
            else:
                found.append(message)
    _check_last(found[-1], f"messages[{len(messages) - 1}]")
    return found


def _check_last(message: Message, place: str) -> None:
    """Refuse a last message of the assistant's that cannot be continued."""
    if message["role"] != "assistant":
        return
    what = "is continued, so it must end with a text"
    is_fine = not message.get("tool_calls") and bool(message["content"].strip())
    require(is_fine, f"{place} is the last one, of the assistant: it {what}", param=f"{place}.content")


def _are_one_turn(one: Message, other: Message) -> bool:
    return one["role"] == other["role"] and {*one} == {*other} == {"role", "content"}


def _turn(content: dict[str, Any], place: str) -> Iterator[Message]:
    turn = convert(known_fields(content, fields_of(Turn), place, {}), Turn, place)
    kinds = ROLES.get(turn.role)
    if kinds is None:
        raise bad_request(
            f"{place}.role must be user or assistant, got {shown(turn.role)}; instructions stand in system",
            param=f"{place}.role",
        )
    blocks = _blocks(turn.content, f"{place}.content", kinds)
    if turn.role == "assistant":
        yield _of_assistant(blocks, f"{place}.content")
    else:
        yield from _of_user(turn.role, blocks, f"{place}.content")


def _blocks(content: str | list[Any], place: str, kinds: Mapping[str, type[msgspec.Struct]]) -> list[msgspec.Struct]:
    if isinstance(content, str):
        return [TextBlock(content)]
    found = []
    for index, each in enumerate(content):
        kind = each.get("type") if isinstance(each, dict) else None
        if kinds is OF_ASSISTANT and isinstance(kind, str) and SKIPPED.fullmatch(kind):
            ignore([f"content[].{kind}"])
        else:
            block = {"type": "text", "text": each} if isinstance(each, str) else each
            found.append(tagged(block, kinds, f"{place}[{index}]"))
    return found


def _joined(content: str | list[Any], place: str, kinds: Mapping[str, type[msgspec.Struct]]) -> str:
    texts = (
        block.text if isinstance(block, TextBlock) else block.tool_name
        for block in _blocks(content, place, kinds)
        if isinstance(block, TextBlock | ToolReference)
    )
    return "\n".join(texts)


def _result(content: Any, place: str) -> str:
    """Return the result of a tool as text; what is neither text nor blocks, as JSON."""
    if isinstance(content, str | list):
        return _joined(content, place, OF_RESULT)
    return content_of(content, "tool", place)[0]


def _of_user(role: str, blocks: list[msgspec.Struct], place: str) -> Iterator[Message]:
    texts: list[str] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock(text):
                texts.append(text)
            case ToolResult():
                if texts:
                    yield {"role": role, "content": "\n".join(texts)}
                    texts = []
                content = _result(block.content, f"{place}[{index}].content")
                shown = f"{FAILED}{content}" if block.is_error else content
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": shown}
    if texts or not blocks:
        yield {"role": role, "content": "\n".join(texts)}


def _of_assistant(blocks: list[msgspec.Struct], place: str) -> Message:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock(text):
                texts.append(text)
            case Thinking(thinking):
                thoughts.append(thinking)
            case ToolUse(call_id, name, arguments):
                function = {"name": name, "arguments": arguments_of(f"{place}[{index}].input", arguments, "input")}
                calls.append({"id": call_id, "type": "function", "function": function})
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | {"tool_calls": calls} if calls else message
