"""Anthropic's request schemas: the bodies of `POST /v1/messages` and its `/count_tokens` to checked calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sluice.http.apis.anthropic.content import MESSAGE_SCHEMA, TEXT_BLOCK_SCHEMA, chat_messages
from sluice.http.apis.anthropic.tools import CHOICE_SCHEMA, TOOL_SCHEMA, tools_of
from sluice.http.base.body import convert, fields_of, json_object, known_fields, take_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.routes import Body
from sluice.http.base.unsupported_fields import IN_PARTS, OF_MESSAGES
from sluice.http.call.constraint_fields import flat_shape
from sluice.http.call.generate_call import (
    Conversation,
    Count,
    EventFields,
    GenerateCall,
    SamplingFields,
    Text,
    documented,
    given_of,
    names_of,
    sampling_params,
    some,
    terms_of,
)
from sluice.http.call.tagged import tagged
from sluice.http.call.template_fields import TemplateFields, conversation_of, thinking_switches
from sluice.text.parsers.tools import ToolUse
from sluice.types.shown import shown

LEAST_BUDGET = 1024
"""Anthropic's least `thinking.budget_tokens`."""
KEPT_EDITS = ("clear_thinking_",)
"""What the type of an edit of the context begins with that changes nothing here: the chat template decides which
thoughts of earlier turns a prompt has."""


class MessagesSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of sampling, with Anthropic's names."""

    stop: list[Text] = msgspec.field(default=[], name="stop_sequences")
    n: Literal[1] = 1


class PromptFields(EventFields, kw_only=True, forbid_unknown_fields=True):
    """What the prompt of a call is made from."""

    model: Text
    messages: Annotated[list[dict[str, Any]], documented(**some(MESSAGE_SCHEMA))]
    system: Annotated[str | list[dict[str, Any]], documented(anyOf=[{"type": "string"}, some(TEXT_BLOCK_SCHEMA)])] = ""
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], documented(items=TOOL_SCHEMA)] = msgspec.field(default_factory=list)
    tool_choice: Annotated[str | dict[str, Any], documented(**CHOICE_SCHEMA)] | None = None
    """A text stands for an object of this type."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class MessagesFields(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/messages`."""


class CountFields(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/messages/count_tokens`, which may have the fields of the other."""


class _Enabled(msgspec.Struct):
    budget_tokens: Count = LEAST_BUDGET


class _Plain(msgspec.Struct):
    """Only a type."""


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


MESSAGES_BODY = Body((MessagesFields, MessagesSampling), required=("max_tokens",))
COUNT_BODY = Body((CountFields, MessagesSampling))
NAMES: Mapping[str, str] = {**names_of(MessagesSampling), "prompt": "messages"}
THINKING: Mapping[str, type[msgspec.Struct]] = {"enabled": _Enabled, "adaptive": _Plain, "disabled": _Plain}
P = TypeVar("P", bound=PromptFields)


def parse_messages(body: bytes) -> GenerateCall[MessagesFields]:
    """Check the body of `POST /v1/messages`.

    Raises:
        ApiError: 400, naming the field.
    """
    call = _read(body, MessagesFields)
    require(call.sampling.max_tokens is not None, "max_tokens is required", param="max_tokens")
    return call


def parse_count(body: bytes) -> GenerateCall[CountFields]:
    """Check the body of `POST /v1/messages/count_tokens`: a call that is not run.

    Raises:
        ApiError: 400, naming the field.
    """
    return _read(body, CountFields)


def _read(body: bytes, kind: type[P]) -> GenerateCall[P]:
    known = fields_of(kind) | fields_of(MessagesSampling)
    content = known_fields(json_object(body), known, unsupported=OF_MESSAGES)
    given = take_fields(content, MessagesSampling)
    fields, sampling = convert(content, kind), convert(given, MessagesSampling, accepted={"n": "1"})
    require(bool(fields.model), "model is required: its name must not be empty", param="model")
    tools = tools_of(fields.tools, fields.tool_choice)
    output = _output_config(fields.output_config or {})
    return GenerateCall(
        fields=fields,
        prompts=(_conversation(fields, output, tools),),
        sampling=sampling_params(sampling, NAMES),
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=fields.model,
        names=NAMES,
        given=given_of(MessagesSampling, given),
        add_special_tokens=False,
        stops_in_thoughts=fields.stop_in_reasoning,
        thinking_budget=_budget(fields.thinking),
        tools=tools,
        shape=None if output.format is None else flat_shape(output.format, "output_config.format"),
        fills_context=True,
    )


def _conversation(fields: PromptFields, output: _OutputConfig, tools: ToolUse) -> Conversation:
    """Return the messages in the form of chats. A last one of the assistant's is continued, as in Anthropic's API."""
    messages = chat_messages(fields.messages, fields.system)
    _check_edits(fields.context_management or {})
    variables = _thinking(fields.thinking) | fields.chat_template_kwargs
    template = TemplateFields(
        chat_template_kwargs=variables,
        reasoning_effort=output.effort,
        continue_final_message=messages[-1]["role"] == "assistant",
    )
    return conversation_of(messages, template, tools)


def _thinking(given: dict[str, Any] | None) -> dict[str, Any]:
    """Return `thinking` as variables of the chat template, by the names that models with a switch have for it."""
    if given is None:
        return {}
    thinking = tagged(given, THINKING, "thinking")
    if isinstance(thinking, _Enabled):
        name, least = "thinking.budget_tokens", LEAST_BUDGET
        message = f"{name} must be at least {least}, got {thinking.budget_tokens}"
        require(thinking.budget_tokens >= least, message, param=name)
    return thinking_switches(thinks=given["type"] != "disabled")


def _budget(thinking: dict[str, Any] | None) -> int | None:
    """Return the most tokens of the reasoning."""
    if thinking is None or thinking.get("type") != "enabled":
        return None
    return thinking.get("budget_tokens")


def _output_config(given: dict[str, Any]) -> _OutputConfig:
    place = "output_config"
    known = known_fields(given, fields_of(_OutputConfig), place, IN_PARTS)
    return convert(known, _OutputConfig, place)


def _check_edits(given: dict[str, Any]) -> None:
    """Refuse edits of the context: prompts are never shortened. Those of thoughts alone change nothing."""
    edits = known_fields(given, frozenset({"edits"}), "context_management", IN_PARTS).get("edits", [])
    kinds = [edit.get("type") if isinstance(edit, dict) else None for edit in edits] if isinstance(edits, list) else []
    for index, kind in enumerate(kinds):
        if not (isinstance(kind, str) and kind.startswith(KEPT_EDITS)):
            param = f"context_management.edits[{index}]"
            raise bad_request(f"{param} of type {shown(kind)} is not supported; leave it out", param=param)
