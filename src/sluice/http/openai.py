"""OpenAI's request schemas: the body of a completion or a chat to a checked call.

Unknown fields are refused by name (see `unsupported_fields`), and only what the client left open is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sluice.http import unsupported_fields
from sluice.http.body import convert, fields_of, json_object, known_fields
from sluice.http.errors import require
from sluice.http.generate_call import (
    ID_SCHEMA,
    Count,
    GenerateCall,
    Logprobs,
    RequestFields,
    SamplingFields,
    checked_prompts,
    documented,
    new_request,
    sampling_params,
    some,
)
from sluice.types import MAX_LOGPROBS, SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""

TEXT_SCHEMA = {"type": "string", "minLength": 1}
PROMPT_SCHEMA = {"anyOf": [TEXT_SCHEMA, some(TEXT_SCHEMA), some(ID_SCHEMA), some(some(ID_SCHEMA))]}
MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"type": "string"},
        "name": {"type": "string"},
    },
}
MESSAGE_ACCEPTS = {"role": "system, developer, user, assistant", "type": "text"}
UNUSED_IN_MESSAGES = ("tool_calls", "function_call", "refusal", "audio", "annotations")
"""Fields of messages that clients repeat from answers, accepted while they hold nothing."""
AnyMessage = Annotated[dict[str, Any], documented(**MESSAGE_SCHEMA)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's addition, which its benchmarks and guidellm use."""


class OpenAIFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common beside `SamplingFields`, which stand next to these in a body."""

    model: str | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Count | None = None
    best_of: Count | None = None
    prompt_logprobs: Logprobs | None = None


class CompletionFields(OpenAIFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[Any, documented(**PROMPT_SCHEMA)]
    logprobs: Logprobs | None = None
    echo: bool = False


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class ChatFields(OpenAIFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[AnyMessage], documented(minItems=1)]
    logprobs: bool = False
    top_logprobs: Logprobs = 0


B = TypeVar("B", bound=OpenAIFields)


def parse_completion(body: bytes) -> GenerateCall[CompletionFields]:
    """Check the body of a completion.

    Raises:
        ApiError: 400, naming the field.
    """
    fields, sampling = _read(body, CompletionFields, unsupported_fields.COMPLETION)
    max_tokens, name = _max_tokens(fields, sampling)
    is_empty = max_tokens == 0
    message = f"{name} must be at least 1, got 0; 0 is only allowed with echo: true"
    require(not is_empty or fields.echo, message, param=name)
    if max_tokens is None:
        max_tokens = COMPLETION_MAX_TOKENS
    params = sampling_params(
        sampling,
        {"max_tokens": name},
        max_tokens=1 if is_empty else max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=_echoed_logprobs(fields),
    )
    prompts = checked_prompts("prompt", fields.prompt, params.n)
    return _call(fields, params, prompts=prompts, is_empty=is_empty)


def parse_chat(body: bytes) -> GenerateCall[ChatFields]:
    """Check the body of a chat.

    Raises:
        ApiError: 400, naming the field.
    """
    fields, sampling = _read(body, ChatFields, unsupported_fields.CHAT)
    top, name = fields.top_logprobs, "top_logprobs"
    require(0 <= top <= MAX_LOGPROBS, f"{name} must be an integer from 0 to {MAX_LOGPROBS}, got {top}", param=name)
    require(not top or fields.logprobs, f"{name} is only allowed with logprobs: true", param=name)
    max_tokens, name = _max_tokens(fields, sampling)
    params = sampling_params(
        sampling,
        {"max_tokens": name},
        max_tokens=max_tokens,
        logprobs=fields.top_logprobs if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
    )
    return _call(fields, params, prompts=(checked_messages(fields.messages),), names={"prompt": "messages"})


def _read(body: bytes, kind: type[B], unsupported: Mapping[str, Any]) -> tuple[B, SamplingFields]:
    """Split a body into the fields of sampling and the others."""
    of_sampling = fields_of(SamplingFields)
    content = known_fields(json_object(body), fields_of(kind) | of_sampling, unsupported)
    sampling = {name: content.pop(name) for name in of_sampling & content.keys()}
    return convert(content, kind), convert(sampling, SamplingFields)


def _max_tokens(fields: OpenAIFields, sampling: SamplingFields) -> tuple[int | None, str]:
    """Return the value of `max_tokens` or `max_completion_tokens`, which mean the same, and the name that was used."""
    one, other = sampling.max_tokens, fields.max_completion_tokens
    require(
        one is None or other is None or one == other,
        f"max_tokens {one} and max_completion_tokens {other} contradict each other; send one of them",
        param="max_completion_tokens",
    )
    return (other, "max_completion_tokens") if one is None else (one, "max_tokens")


def _echoed_logprobs(fields: CompletionFields) -> int | None:
    """Return the alternatives to give for each token of the prompt: an echo has log-probabilities like the output."""
    if not fields.echo or fields.logprobs is None:
        return fields.prompt_logprobs
    message = "logprobs with echo: true are not supported with stream: true; send stream: false"
    require(not fields.stream, message, param="logprobs")
    require(
        fields.prompt_logprobs in (None, fields.logprobs),
        f"prompt_logprobs must be as many as logprobs, {fields.logprobs}, with echo: true,"
        f" got {fields.prompt_logprobs}; or leave one of them out",
        param="prompt_logprobs",
    )
    return fields.logprobs


def _call(fields: B, params: SamplingParams, **others: Any) -> GenerateCall[B]:
    """Check what the fields of completions and chats may be together."""
    require(
        not fields.stream or fields.prompt_logprobs is None,
        "prompt_logprobs is not supported with stream: true, whose events are tokens of the answer; send stream: false",
        param="prompt_logprobs",
    )
    message = f"best_of {fields.best_of} is not supported; leave it out, or send as many as n, {params.n}"
    require(fields.best_of in (None, params.n), message, param="best_of")
    has_options, options = fields.stream_options is not None, fields.stream_options or StreamOptions()
    message = "stream_options is only allowed with stream: true"
    require(fields.stream or not has_options, message, param="stream_options")
    message = "stream_options.continuous_usage_stats is only allowed with include_usage: true"
    require(bool(options.include_usage) or not options.continuous_usage_stats, message, param="stream_options")
    return GenerateCall(
        fields=fields,
        request=new_request(fields, params),
        model=fields.model,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        **others,
    )


def checked_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, str], ...]:
    """Return messages as chat templates take them: text parts joined by line breaks, "developer" as "system".

    Raises:
        ApiError: 400, no message, or one whose field is named.
    """
    require(bool(messages), "messages must hold at least one message, got []", param="messages")
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, content: dict[str, Any]) -> dict[str, str]:
    used = {name: value for name, value in content.items() if name not in UNUSED_IN_MESSAGES or value not in (None, [])}
    message = convert(used, Message, f"messages[{index}]", MESSAGE_ACCEPTS)
    text = message.content
    if not isinstance(text, str):
        text = "\n".join(part.text for part in text)
    rendered = {"role": "system" if message.role == "developer" else message.role, "content": text}
    return rendered if message.name is None else rendered | {"name": message.name}
