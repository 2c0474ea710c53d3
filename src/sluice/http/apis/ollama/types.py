"""The answers of Ollama's API as types (see `answer_types`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.call.answer_types import ChatToken

Count = int | UnsetType
Nanoseconds = int | UnsetType


class _OllamaAnswerType(msgspec.Struct, kw_only=True):
    model: str
    created_at: str
    """Now, as RFC 3339 has it."""
    done: bool
    """What is optional below, besides `logprobs`, is in the last event of a stream, and in whole answers."""
    logprobs: list[ChatToken] | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: Nanoseconds = UNSET
    load_duration: Nanoseconds = UNSET
    prompt_eval_count: Count = UNSET
    prompt_eval_duration: Nanoseconds = UNSET
    eval_count: Count = UNSET
    eval_duration: Nanoseconds = UNSET


class OllamaCalledFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    id: str
    function: OllamaCalledFunction


class OllamaAssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaChat(_OllamaAnswerType, kw_only=True):
    message: OllamaAssistantMessage


class OllamaGenerated(_OllamaAnswerType, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbed(msgspec.Struct):
    """The answer to `POST /api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    """Both in nanoseconds."""
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    """The answer to `POST /api/embeddings`."""

    embedding: list[float]


class OllamaDetails(msgspec.Struct):
    """What a checkpoint is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    """The type of the numbers, such as `bfloat16`."""


class _OllamaModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    """Bytes."""
    digest: str
    details: OllamaDetails


class OllamaModel(_OllamaModel, kw_only=True):
    modified_at: str


class OllamaTags(msgspec.Struct):
    """The answer to `GET /api/tags`."""

    models: list[OllamaModel]


class OllamaRunningModel(_OllamaModel, kw_only=True):
    size_vram: int
    expires_at: str
    context_length: int


class OllamaRunning(msgspec.Struct):
    """The answer to `GET /api/ps`."""

    models: list[OllamaRunningModel]


class OllamaShown(msgspec.Struct):
    """The answer to `POST /api/show`."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    """Facts by name, such as `qwen3.context_length`."""
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct):
    """The answer to `GET /api/version`."""

    version: str
