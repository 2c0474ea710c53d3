"""The answers of Ollama's `POST /api/chat` and `/api/generate`, as types (see `answer_types`)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.answer_types import AssistantMessage, ChatToken

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


class OllamaChat(_OllamaAnswerType, kw_only=True):
    message: AssistantMessage


class OllamaGenerated(_OllamaAnswerType, kw_only=True):
    response: str
