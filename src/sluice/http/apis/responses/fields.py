"""The request schema of OpenAI's Responses API: the body of `POST /v1/responses` to a checked call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from sluice.http.apis.responses.items import INPUT_SCHEMA, Item, chat_messages, items_of
from sluice.http.apis.responses.store import ResponseStore, owner_of
from sluice.http.apis.responses.tools import CHOICE_SCHEMA, TOOL_SCHEMA, tools_of
from sluice.http.base.body import convert, fields_of, json_object, kind_of, known_fields, take_fields
from sluice.http.base.errors import require
from sluice.http.base.routes import Body
from sluice.http.base.unsupported_fields import IN_PARTS, OF_RESPONSES
from sluice.http.call.constraint_fields import flat_shape
from sluice.http.call.generate_call import (
    Conversation,
    Count,
    EventFields,
    GenerateCall,
    Logprobs,
    SamplingFields,
    check_top_logprobs,
    documented,
    given_of,
    names_of,
    sampling_params,
    terms_of,
)
from sluice.http.call.template_fields import TemplateFields, conversation_of
from sluice.http.call.thinking_budget import one_budget
from sluice.text.parsers.tools import ToolUse
from sluice.types.shown import shown

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Pairs of `metadata`, and characters of their keys and values."""
WITH_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (
    WITH_LOGPROBS,
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What `include` may hold. All but the first concern what answers never have: reasoning is not encrypted here."""


class ResponseSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of sampling, with the names of this API."""

    max_tokens: Count | None = msgspec.field(default=None, name="max_output_tokens")
    n: Literal[1] = 1


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The field `text`."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The field `reasoning`. The reasoning itself is in the answer, so it is never summarised."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Count | None = None
    """Most tokens of the reasoning, as OpenRouter has it."""


class ResponseFields(EventFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses`."""

    model: str | None = None
    input: Annotated[Any, documented(**INPUT_SCHEMA)] = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    include: list[Annotated[str, documented(enum=[*INCLUDED])]] = msgspec.field(default_factory=list)
    tools: Annotated[list[dict[str, Any]], documented(items=TOOL_SCHEMA)] = msgspec.field(default_factory=list)
    tool_choice: Annotated[Any, documented(**CHOICE_SCHEMA)] = "auto"
    parallel_tool_calls: bool = True
    top_logprobs: Logprobs = 0
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


RESPONSE_BODY = Body((ResponseFields, ResponseSampling))
NAMES: Mapping[str, str] = {
    **names_of(ResponseSampling),
    "prompt": "input",
    "thinking_budget": "reasoning.max_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall(GenerateCall[ResponseFields]):
    """A checked body, and the conversation that it stands for."""

    owner: bytes
    """Who may see the response."""
    input: bytes | None
    """The items of the conversation, as JSON. None: the response is not to be stored."""


def parse_response(store: ResponseStore, api_key: bytes, body: bytes) -> ResponseCall:
    """Check the body of `POST /v1/responses`.

    Raises:
        ApiError: 400, naming the field; 404, there is no such previous response.
    """
    known = fields_of(ResponseFields) | fields_of(ResponseSampling)
    content = known_fields(json_object(body), known, unsupported=OF_RESPONSES)
    given = take_fields(content, ResponseSampling)
    fields, sampling = _fields(content), convert(given, ResponseSampling, accepted={"n": "1"})
    owner = owner_of(api_key, fields.cache_salt or "")
    earlier = _earlier(fields, store, owner)
    items = [*earlier, *items_of(fields.input)]
    names = NAMES
    logprobs = fields.top_logprobs if WITH_LOGPROBS in fields.include or fields.top_logprobs else None
    params = sampling_params(sampling, names, logprobs=logprobs)
    tools = tools_of(fields.tools, fields.tool_choice, is_parallel=fields.parallel_tool_calls)
    form = fields.text.format
    budget, _ = one_budget({NAMES["thinking_budget"]: fields.reasoning.max_tokens})
    return ResponseCall(
        fields=fields,
        prompts=(_conversation(fields, tools, items, len(earlier)),),
        sampling=params,
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=fields.model,
        names=names,
        given=given_of(ResponseSampling, given),
        add_special_tokens=False,
        stops_in_thoughts=fields.stop_in_reasoning,
        thinking_budget=budget,
        tools=tools,
        shape=None if form is None else flat_shape(form, "text.format"),
        owner=owner,
        input=_kept(items, store) if fields.store else None,
    )


def _fields(content: dict[str, Any]) -> ResponseFields:
    """Return the fields that are none of sampling, each checked by its name."""
    text = content.get("text")
    if isinstance(text, dict):
        content["text"] = known_fields(text, fields_of(TextConfig), "text", IN_PARTS)
    fields = convert(content, ResponseFields)
    unknown = next((each for each in fields.include if each not in INCLUDED), None)
    message = f"include holds {shown(unknown)}; accepted: {', '.join(INCLUDED)}"
    require(unknown is None, message, param="include")
    check_top_logprobs(fields.top_logprobs)
    _check_metadata(fields.metadata)
    given, has_earlier = fields.input, fields.previous_response_id is not None
    is_fine = (isinstance(given, str) and bool(given)) or (isinstance(given, list) and bool(given or has_earlier))
    message = f"input must be a non-empty text, or a list of items, got {kind_of(given)}"
    require(is_fine, message, param="input")
    return fields


def _check_metadata(metadata: dict[str, str]) -> None:
    is_fine = len(metadata) <= MAX_METADATA and all(
        len(key) <= MAX_METADATA_KEY and len(value) <= MAX_METADATA_VALUE for key, value in metadata.items()
    )
    require(
        is_fine,
        f"metadata may hold at most {MAX_METADATA} texts of at most {MAX_METADATA_VALUE} characters, under names of at"
        f" most {MAX_METADATA_KEY}",
        param="metadata",
    )


def _earlier(fields: ResponseFields, store: ResponseStore, owner: bytes) -> list[Item]:
    """Return the conversation up to and including the previous response."""
    name = "previous_response_id"
    if fields.previous_response_id is None:
        return []
    return store.get(fields.previous_response_id, owner, param=name).items()


def _kept(items: list[Item], store: ResponseStore) -> bytes | None:
    content = msgspec.json.encode(items)
    return content if store.can_hold(len(content)) else None


def _conversation(fields: ResponseFields, tools: ToolUse, items: list[Item], num_earlier: int) -> Conversation:
    messages = chat_messages(items, fields.instructions, num_earlier)
    template = TemplateFields(
        chat_template_kwargs=fields.chat_template_kwargs,
        reasoning_effort=fields.reasoning.effort,
        verbosity=fields.text.verbosity,
    )
    return conversation_of(messages, template, tools)
