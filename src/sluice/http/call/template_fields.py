"""Fields of chats that change what the chat template makes of the messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from sluice.http.base.body import kind_of
from sluice.http.base.errors import bad_request, require
from sluice.http.base.json_bounds import check_nesting
from sluice.http.call.generate_call import Conversation, documented
from sluice.http.call.messages import AnyMessage, checked_messages
from sluice.text.chat_template import OWN_VARIABLES, RenderOptions
from sluice.text.parsers.choosing import SWITCHES
from sluice.text.parsers.tools import NO_TOOLS, ToolUse
from sluice.text.special_text import texts_of
from sluice.types.shown import shown

UNCOUNTED = ("role", "reasoning_content", "thinking")
"""Fields of messages that do not count for the length of a prompt: templates leave out reasoning of earlier turns."""
THINKING: Mapping[str, bool] = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}
"""Types of `thinking` -> whether the model is to think."""
MAX_KWARGS = 64
MAX_KWARGS_BYTES = 1 << 16
"""Most bytes of `chat_template_kwargs` as JSON. Long texts belong in messages and documents."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
RESERVED: Mapping[str, str] = {
    "messages": "send it as a field of the request",
    "conversation": "send messages as a field of the request",
    "tools": "send it as a field of the request",
    "documents": "send it as a field of the request",
    "add_generation_prompt": "send it as a field of the request",
    "continue_final_message": "send it as a field of the request",
    "chat_template": "the server's option --chat-template sets it",
    "tokenize": "POST /tokenize returns token ids",
    **dict.fromkeys(OWN_VARIABLES, "the server sets it"),
    **dict.fromkeys(
        ("return_dict", "return_tensors", "padding", "truncation", "max_length", "tokenizer_kwargs"),
        "it is an argument of a Python function, and no variable of a template",
    ),
}
"""Names that `chat_template_kwargs` may not hold, and why."""


class TemplateFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of chats, and of `POST /tokenize` with messages, that only the chat template sees."""

    chat_template_kwargs: Annotated[dict[str, Any], documented(maxProperties=MAX_KWARGS)] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    enable_thinking: bool | None = None
    """The switch of Qwen's API, as `thinking` is of DeepSeek's. A variable of the template's own counts first."""
    thinking: Annotated[dict[str, Any], documented(properties={"type": {"enum": [*THINKING]}})] | None = None
    reasoning_effort: Annotated[str, documented(maxLength=64)] | None = None
    verbosity: Annotated[str, documented(maxLength=64)] | None = None
    documents: list[dict[str, Any]] | None = None


def conversation_of(messages: list[AnyMessage], fields: TemplateFields, tools: ToolUse = NO_TOOLS) -> Conversation:
    """Return checked messages, and how they are rendered.

    Args:
        tools: which the template shows to the model, unless it may call none.

    Raises:
        ApiError: 400, naming the field.
    """
    continues = fields.continue_final_message
    message = "continue_final_message: true excludes add_generation_prompt: true; send one of them"
    require(not (continues and fields.add_generation_prompt), message, param="continue_final_message")
    adds = not continues if fields.add_generation_prompt is None else fields.add_generation_prompt
    checked = checked_messages(messages)
    message = "continue_final_message: true needs a last message with content"
    require(not continues or bool(checked[-1]["content"].strip()), message, param="continue_final_message")
    shown = {"tools": tools.as_json()} if tools.callable else {}
    options = RenderOptions(_variables(fields) | shown, adds, continues)
    values = [value for each in checked for name, value in each.items() if name not in UNCOUNTED]
    return Conversation(checked, options, sum(map(len, texts_of([values, options.variables]))))


def thinking_switches(*, thinks: bool) -> dict[str, Any]:
    """Return the variables that turn reasoning on or off, under every name that templates have for the switch.

    A template reads the one that it knows.
    """
    return dict.fromkeys(SWITCHES, thinks)


def _switched(fields: TemplateFields) -> dict[str, Any]:
    """Return the variables by which a body turns reasoning on or off."""
    if fields.thinking is not None:
        kind = fields.thinking.get("type")
        is_known = isinstance(kind, str) and kind in THINKING
        message = f"thinking.type must be one of {', '.join(THINKING)}, got {kind!r:.60}"
        require(is_known, message, param="thinking.type")
        return thinking_switches(thinks=THINKING[str(kind)])
    return {} if fields.enable_thinking is None else thinking_switches(thinks=fields.enable_thinking)


def _variables(fields: TemplateFields) -> dict[str, Any]:
    variables = _switched(fields) | fields.chat_template_kwargs
    param = "chat_template_kwargs"
    require(
        len(variables) <= MAX_KWARGS, f"{param} may hold at most {MAX_KWARGS} names, got {len(variables)}", param=param
    )
    for name in variables:
        _check_name(name)
    check_nesting(variables, param)
    size = len(msgspec.json.encode(variables))
    require(size <= MAX_KWARGS_BYTES, f"{param} may have at most {MAX_KWARGS_BYTES} bytes, got {size}", param=param)
    for name in ("reasoning_effort", "verbosity"):
        _add_level(variables, name, getattr(fields, name))
    for index, document in enumerate(fields.documents or ()):
        check_nesting(document, f"documents[{index}]")
    return variables if fields.documents is None else variables | {"documents": fields.documents}


def _check_name(name: str) -> None:
    param = f"chat_template_kwargs.{name}"
    if name in RESERVED:
        raise bad_request(f"{param} is reserved: {RESERVED[name]}", param=param)
    is_name = NAME.fullmatch(name) is not None
    what = "a letter, then at most 63 letters, digits or _"
    require(is_name, f"chat_template_kwargs must hold names of variables ({what}), got {shown(name)}", param=param)


def _add_level(variables: dict[str, Any], name: str, level: str | None) -> None:
    """Add a field that OpenAI's API has as such, and vLLM's among the variables too."""
    if level is None:
        return
    is_word = re.fullmatch(r"[a-z]{1,64}", level) is not None
    require(is_word, f"{name} must be a word of lower-case letters, as 'low', got {shown(level)}", param=name)
    other = variables.setdefault(name, level)
    there = f"chat_template_kwargs.{name}, {kind_of(other)}"
    message = f"{name} {shown(level)} and {there}, contradict each other; send one"
    require(other == level, message, param=name)
