"""The answers of the routes that generate, as types: `/openapi.json` describes answers by them.

Answers are made as dictionaries, a piece at a time (`answers`, `sglang`). A test holds what is sent to these types.
A field whose type has `UnsetType` may be absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.call.generate_call import documented

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
Ids = list[int]
MoreIds = Ids | UnsetType
"""Only with `return_token_ids`."""


class CachedTokensDetails(msgspec.Struct):
    """Cached tokens by where they lay."""

    device: int
    host: int
    disk: int


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET
    """Only if some were not on the device (SGLang)."""


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int
    """Tokens before the answer."""
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Tokens that the server had guessed, with `--speculative-algorithm`."""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """Guesses that were wrong. They are no tokens of the answer."""


class Usage(msgspec.Struct):
    """Tokens of a call: each prompt once for any `n`; the outputs of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Only of chats with reasoning, and of answers with guessed tokens."""


class Progress(msgspec.Struct):
    """How far the prompts of a call are read, with `stream_options.include_progress`."""

    prompt_tokens_read: int
    """Computed, or found in the cache."""
    prompt_tokens: int
    seconds_left: float | None
    """As expected; null while that is not known."""


class PromptToken(msgspec.Struct):
    """A token at a place of the prompt (vLLM)."""

    logprob: float
    rank: int | None
    """None: it is not among the most likely, and its rank is unknown."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""For each token of the prompt the token itself and the most likely ones, by id; null for the first."""


class _Head(msgspec.Struct, kw_only=True):
    id: str
    created: int
    """Unix seconds."""
    model: str
    store: Literal[False] | UnsetType = UNSET
    """Only if the request says `store: true`."""


class CompletionLogprobs(msgspec.Struct):
    """Lists with an item for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens and the token itself, by text."""
    text_offset: list[int]
    """Where the token begins in `text`, in characters."""


class _CompletionText(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: MoreIds = UNSET
    token_ids: MoreIds = UNSET


class CompletionChoice(_CompletionText, kw_only=True):
    finish_reason: FinishReason
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(_Head, kw_only=True):
    """The answer to `POST /v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(_CompletionText, kw_only=True):
    finish_reason: FinishReason | None


class CompletionChunk(_Head, kw_only=True):
    """An event of its stream. Those with the usage of the call, or with its progress, have no choices."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    progress: Progress | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]
    refusal: None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str
    """JSON text."""


class ToolCall(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    """null: the message only calls tools."""
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    token_ids: MoreIds = UNSET


class ChatCompletion(_Head, kw_only=True):
    """The answer to `POST /v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: MoreIds = UNSET


class FunctionDelta(msgspec.Struct):
    arguments: str
    """More of the JSON text."""
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """A part of a call. The first has all fields."""

    index: int
    """Of the call in the answer."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    """Only in the first event of a choice."""
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    token_ids: MoreIds = UNSET


class ChatCompletionChunk(_Head, kw_only=True):
    """An event of its stream. Those with the usage of the call, or with its progress, have no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    progress: Progress | UnsetType = UNSET
    prompt_token_ids: MoreIds = UNSET


class NativeFinishReason(msgspec.Struct):
    type: FinishReason
    length: int | UnsetType = UNSET


NativeToken = Annotated[
    list[Any],
    documented(
        prefixItems=[{"type": ["number", "null"]}, {"type": "integer"}, {"type": ["string", "null"]}],
        minItems=3,
        maxItems=3,
    ),
]
"""A log-probability, the token's id, and its text if `return_text_in_logprobs` asks for it."""


class MetaInfo(msgspec.Struct, kw_only=True):
    id: str
    finish_reason: NativeFinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET
    e2e_latency: float
    """Seconds since the request came."""
    input_token_logprobs: list[NativeToken] | UnsetType = UNSET
    input_top_logprobs: list[list[NativeToken] | None] | UnsetType = UNSET
    output_token_logprobs: list[NativeToken] | UnsetType = UNSET
    output_top_logprobs: list[list[NativeToken] | None] | UnsetType = UNSET


class Generated(msgspec.Struct, kw_only=True):
    """The output of a choice, in a stream so far."""

    text: str
    output_ids: Ids
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
    """Only in streams of several choices."""


GenerateAnswer = Generated | list[Generated]


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """A vector of length 1; or, on request, its little-endian float32 in base64."""


class Embeddings(msgspec.Struct, kw_only=True):
    """The answer to `POST /v1/embeddings`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


class RankedDocument(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct, kw_only=True):
    index: int
    """Of the document in the request."""
    document: RankedDocument | UnsetType = UNSET
    """Unless `return_documents` is false."""
    relevance_score: float


class Reranked(msgspec.Struct, kw_only=True):
    """The answer to `POST /rerank`."""

    id: str
    model: str
    results: list[Ranked]
    """Best first."""
    usage: Usage


class Score(msgspec.Struct, kw_only=True):
    object: Literal["score"]
    index: int
    score: float


class Scored(msgspec.Struct, kw_only=True):
    """The answer to `POST /score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: Usage
