"""OpenAI's request schema: bytes of a body to a checked, typed call.

Unknown fields are refused by name (see `inert`), and nothing is filled in that the caller did not leave open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sluice.http.errors import ApiError, bad_request
from sluice.http.generate_call import (
    LONGEST_SECONDS,
    ChatCall,
    CompletionCall,
    checked_choices,
    checked_salt,
    checked_seconds,
    checked_stops,
)
from sluice.http.json_body import are_ids, convert, fields_of, json_object, kind_of
from sluice.http.unsupported_fields import CHAT_ASKS_NOTHING, COMPLETION_ASKS_NOTHING, without_inert
from sluice.types import (
    MAX_BIAS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_SAMPLES,
    MAX_TOP_K,
    REPETITION_PENALTIES,
    SEED_RANGE,
    SamplingParams,
)

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""


def shown(minimum: float | None = None, maximum: float | None = None) -> Meta:
    """Bounds as the published schema shows them. They are checked elsewhere, in words that name the field."""
    bounds = {"minimum": minimum, "maximum": maximum}
    return Meta(extra_json_schema={name: bound for name, bound in bounds.items() if bound is not None})


PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}
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
AnyMessage = Annotated[dict[str, Any], Meta(extra_json_schema=MESSAGE_SCHEMA)]
Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
Penalty = Annotated[float, shown(-MAX_PENALTY, MAX_PENALTY)]
Count = Annotated[int, shown(0)]
Logprobs = Annotated[int, shown(0, MAX_LOGPROBS)]
Seconds = Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": LONGEST_SECONDS})]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common. `null` is the same as leaving a field out."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, shown(0)] = 1.0
    top_p: Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 1})] = 1.0
    top_k: Annotated[int, shown(-1, MAX_TOP_K)] = 0
    min_p: Annotated[float, shown(0, 1)] = 0.0
    seed: Annotated[int, shown(*SEED_RANGE)] | None = None
    stop: str | list[Text] = []
    stop_token_ids: list[Count] = []
    ignore_eos: bool = False
    n: Annotated[int, shown(1, MAX_SAMPLES)] = 1
    best_of: Count | None = None
    priority: int = 0
    cache_salt: str | None = None
    prompt_logprobs: Logprobs | None = None
    min_tokens: Count = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, shown(*REPETITION_PENALTIES)] = 1.0
    logit_bias: dict[str, Annotated[float, shown(-MAX_BIAS, MAX_BIAS)]] = {}
    max_queue_time: Seconds | None = None
    timeout: Seconds | None = None


class CompletionFields(Fields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[Any, Meta(extra_json_schema=PROMPT_SCHEMA)]
    logprobs: Logprobs | None = None
    echo: bool = False


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class ChatFields(Fields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[AnyMessage], Meta(extra_json_schema={"minItems": 1})]
    logprobs: bool = False
    top_logprobs: Logprobs = 0


def parse_completion(body: bytes) -> CompletionCall:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    content = without_inert(json_object(body), fields_of(CompletionFields), COMPLETION_ASKS_NOTHING)
    fields = convert(content, CompletionFields)
    asked = _max_tokens(fields)
    max_tokens = COMPLETION_MAX_TOKENS if asked is None else asked
    is_empty = max_tokens == 0
    if is_empty and not fields.echo:
        name = _max_tokens_name(fields)
        raise bad_request(f"{name} must be at least 1, got 0; 0 is only allowed with echo: true", param=name)
    prompts = checked_prompts("prompt", fields.prompt)
    sampling = _sampling(fields, max(1, max_tokens) if is_empty else max_tokens, fields.logprobs, _of_prompt(fields))
    checked_choices(len(prompts), sampling.n)
    return CompletionCall(prompts=prompts, sampling=sampling, echo=fields.echo, is_empty=is_empty, **_common(fields))


def parse_chat(body: bytes) -> ChatCall:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    fields = convert(without_inert(json_object(body), fields_of(ChatFields), CHAT_ASKS_NOTHING), ChatFields)
    if not fields.messages:
        raise bad_request("messages must hold at least one message, got []", param="messages")
    return ChatCall(
        messages=checked_messages(fields.messages),
        sampling=_sampling(fields, _max_tokens(fields), _chat_logprobs(fields), fields.prompt_logprobs),
        **_common(fields),
    )


def _common(fields: Fields) -> dict[str, Any]:
    """The rest of a `Call`."""
    if fields.best_of not in (None, fields.n):
        raise bad_request(
            f"best_of {fields.best_of} is not supported; leave it out, or send as many as n, {fields.n}",
            param="best_of",
        )
    return {
        "model": fields.model,
        "stream": fields.stream,
        "include_usage": _include_usage(fields),
        "continuous_usage": _continuous_usage(fields),
        "priority": fields.priority,
        "extra_key": checked_salt("cache_salt", fields.cache_salt),
        "max_queue_time": checked_seconds("max_queue_time", fields.max_queue_time),
        "timeout": checked_seconds("timeout", fields.timeout),
        "tells_prompt_logprobs": fields.prompt_logprobs is not None,
    }


def _of_prompt(fields: CompletionFields) -> int | None:
    """Alternatives to tell for each token of the prompt: an echo is told of like the rest of the text."""
    if not fields.echo or fields.logprobs is None:
        return fields.prompt_logprobs
    if fields.stream:
        raise bad_request(
            "logprobs with echo: true are not supported with stream: true; send stream: false", param="logprobs"
        )
    if fields.prompt_logprobs not in (None, fields.logprobs):
        raise bad_request(
            f"prompt_logprobs must be as many as logprobs, {fields.logprobs}, with echo: true,"
            f" got {fields.prompt_logprobs}; or leave one of them out",
            param="prompt_logprobs",
        )
    return fields.logprobs


def checked_prompts(name: str, value: Any) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either.

    Args:
        name: of the field.

    Raises:
        ApiError: 400, anything else.
    """
    if isinstance(value, str) or are_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _bad_prompt(name, value)
    for index, item in enumerate(value):
        if not (are_ids(item) or (isinstance(item, str) and item)):
            raise _bad_prompt(name if len(value) == 1 else f"{name}[{index}]", item)
    return tuple(value)


def _bad_prompt(param: str, value: Any) -> ApiError:
    return bad_request(
        f"{param} must be a non-empty text, a non-empty list of token ids, or a list of either; got {kind_of(value)}",
        param=param,
    )


def checked_messages(messages: list[dict[str, Any]]) -> tuple[dict[str, str], ...]:
    """Messages as chat templates take them.

    Raises:
        ApiError: 400, naming the message and its field.
    """
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, content: dict[str, Any]) -> dict[str, str]:
    """One message as chat templates take it: text parts joined by line breaks, "developer" is "system"."""
    unused = ("tool_calls", "function_call", "refusal", "audio", "annotations")
    said = {name: value for name, value in content.items() if not (name in unused and value in (None, []))}
    message = convert(said, Message, f"messages[{index}]", MESSAGE_ACCEPTS)
    text = message.content
    if not isinstance(text, str):
        text = "\n".join(part.text for part in text)
    role = "system" if message.role == "developer" else message.role
    rendered = {"role": role, "content": text}
    return rendered if message.name is None else rendered | {"name": message.name}


def _max_tokens(fields: Fields) -> int | None:
    """The two names mean the same."""
    one, other = fields.max_tokens, fields.max_completion_tokens
    if one is not None and other is not None and one != other:
        raise bad_request(
            f"max_tokens {one} and max_completion_tokens {other} contradict each other; send one of them",
            param="max_completion_tokens",
        )
    return one if other is None else other


def _max_tokens_name(fields: Fields) -> str:
    """The one that the caller used."""
    return "max_completion_tokens" if fields.max_tokens is None else "max_tokens"


def _chat_logprobs(fields: ChatFields) -> int | None:
    if not 0 <= fields.top_logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"top_logprobs must be an integer from 0 to {MAX_LOGPROBS}, got {fields.top_logprobs}", param="top_logprobs"
        )
    if fields.top_logprobs and not fields.logprobs:
        raise bad_request("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
    return fields.top_logprobs if fields.logprobs else None


def _include_usage(fields: Fields) -> bool:
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise bad_request("stream_options is only allowed with stream: true", param="stream_options")
    return bool(fields.stream_options.include_usage)


def _continuous_usage(fields: Fields) -> bool:
    """vLLM's addition, which its benchmarks and guidellm ask for."""
    options = fields.stream_options
    if options is None or not options.continuous_usage_stats:
        return False
    if not options.include_usage:
        raise bad_request(
            "stream_options.continuous_usage_stats is only allowed with include_usage: true", param="stream_options"
        )
    return True


def logit_bias_by_id(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON spells token ids as texts.

    Raises:
        ApiError: 400, a text that is none.
    """
    for token in given:
        if re.fullmatch(r"[0-9]{1,10}", token) is None:
            raise bad_request(f"logit_bias must be by token id, got {token!r}", param="logit_bias")
    return tuple((int(token), bias) for token, bias in given.items())


def _sampling(
    fields: Fields, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    if fields.stream and fields.prompt_logprobs is not None:
        raise bad_request(
            "prompt_logprobs is not supported with stream: true, whose events are tokens of the answer; send"
            " stream: false",
            param="prompt_logprobs",
        )
    return checked_sampling(
        {"max_tokens": _max_tokens_name(fields)},
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=checked_stops(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        n=fields.n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        min_tokens=fields.min_tokens,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=logit_bias_by_id(fields.logit_bias),
    )


def checked_sampling(names: Mapping[str, str], **values: Any) -> SamplingParams:
    """
    Args:
        names: field -> what the caller calls it, where that is something else.

    Raises:
        ApiError: 400, naming the field.
    """
    try:
        return SamplingParams(**values)
    except ValueError as error:
        field, _, rest = str(error).partition(" ")
        param = names.get(field, field)
        raise bad_request(f"{param} {rest}", param=param) from error
