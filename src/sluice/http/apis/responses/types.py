"""The parts of responses in the form of OpenAI's Responses API, and the events of their streams."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.call.logprobs import ChatToken

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    """JSON text."""
    namespace: str | UnsetType = UNSET
    """Namespace in which the body has the tool."""


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"]


class ReasoningSettings(msgspec.Struct):
    effort: str | None
    summary: str | None


class TextSettings(msgspec.Struct):
    format: dict[str, Any]
    verbosity: str | None


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """The answer to `POST /v1/responses`."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix seconds."""
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningSettings
    store: bool
    """False: it is not stored, even if the request asks for it."""
    temperature: float
    text: TextSettings
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int


class _ResponseEvent(_Event, kw_only=True):
    response: ResponseObject


class Created(_ResponseEvent, tag="response.created"):
    pass


class InProgress(_ResponseEvent, tag="response.in_progress"):
    pass


class Completed(_ResponseEvent, tag="response.completed"):
    pass


class Incomplete(_ResponseEvent, tag="response.incomplete"):
    pass


class Failed(_ResponseEvent, tag="response.failed"):
    pass


class _ItemEvent(_Event, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(_ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(_ItemEvent, tag="response.output_item.done"):
    pass


class _InItem(_Event, kw_only=True):
    item_id: str
    output_index: int


class _InContent(_InItem, kw_only=True):
    content_index: int


class PartAdded(_InContent, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(_InContent, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class TextDelta(_InContent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatToken]


class TextDone(_InContent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(_InContent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_InContent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(_InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_InItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InputDelta(_InItem, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str
    """The whole input."""


class InputDone(_InItem, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


ResponseEvent = (
    Created | InProgress | Completed | Incomplete | Failed | ItemAdded | ItemDone | PartAdded | PartDone
) | (TextDelta | TextDone | ReasoningDelta | ReasoningDone | ArgumentsDelta | ArgumentsDone | InputDelta | InputDone)
"""An event of its stream."""


class DeletedResponse(msgspec.Struct):
    """The answer to `DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response.deleted"]
    deleted: Literal[True]


class InputTokens(msgspec.Struct):
    """The answer to `POST /v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class InputItems(msgspec.Struct):
    """The answer to `GET /v1/responses/{id}/input_items`."""

    object: Literal["list"]
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
