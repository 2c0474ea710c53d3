"""OpenAI's request schema: bytes of a body to a checked, typed call.

JSON types are strict ("5" is no number), unknown fields are refused by name (see `inert`), and nothing is filled in
that the caller did not leave open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from sluice.limits import LimitError, check_cache_salt
from sluice.server.errors import ApiError, bad_request
from sluice.server.inert import CHAT_ASKS_NOTHING, COMPLETION_ASKS_NOTHING, without_inert
from sluice.types import MAX_LOGPROBS, SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
"""Characters. Stop strings cost time for every token of every stream."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class _Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common. `null` is the same as leaving a field out."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}


class _Completion(_Fields, kw_only=True, forbid_unknown_fields=True):
    prompt: Any
    best_of: int | None = None
    logprobs: int | None = None


class _TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]
    name: str | None = None


class _Chat(_Fields, kw_only=True, forbid_unknown_fields=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """`POST /v1/completions`: each prompt is a text or token ids, and becomes `sampling.n` choices."""

    model: str | None
    prompts: tuple[str | list[int], ...]
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    priority: int
    extra_key: str


@dataclass(frozen=True, slots=True)
class ChatCall:
    """`POST /v1/chat/completions`: messages as chat templates take them."""

    model: str | None
    messages: tuple[dict[str, str], ...]
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    priority: int
    extra_key: str


def parse_completion(body: bytes) -> CompletionCall:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    fields = _convert(without_inert(_object(body), _names(_Completion), COMPLETION_ASKS_NOTHING), _Completion)
    if fields.best_of not in (None, fields.n):
        raise bad_request(
            f"best_of {fields.best_of} is not supported; leave it out, or send as many as n, {fields.n}",
            param="best_of",
        )
    max_tokens = COMPLETION_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    return CompletionCall(
        model=fields.model,
        prompts=_prompts(fields.prompt),
        sampling=_sampling(fields, max_tokens, fields.logprobs),
        stream=fields.stream,
        include_usage=_include_usage(fields),
        priority=fields.priority,
        extra_key=_extra_key(fields),
    )


def parse_chat(body: bytes) -> ChatCall:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    fields = _convert(without_inert(_object(body), _names(_Chat), CHAT_ASKS_NOTHING), _Chat)
    if not fields.messages:
        raise bad_request("messages must hold at least one message, got []", param="messages")
    return ChatCall(
        model=fields.model,
        messages=tuple(_message(index, message) for index, message in enumerate(fields.messages)),
        sampling=_sampling(fields, _chat_max_tokens(fields), _chat_logprobs(fields)),
        stream=fields.stream,
        include_usage=_include_usage(fields),
        priority=fields.priority,
        extra_key=_extra_key(fields),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise bad_request(f"the body must be a JSON object, got {_kind(content)}")
    return content


T = TypeVar("T", bound=msgspec.Struct)


def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _convert(content: dict[str, Any], kind: type[T], place: str = "") -> T:
    try:
        return msgspec.convert(content, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), place) from error


def _invalid(message: str, place: str) -> ApiError:
    """msgspec's "Expected `int`, got `str` - at `$.seed`", in terms of the request."""
    what, _, path = message.partition(" - at ")
    steps = [place, path.strip("`").removeprefix("$").removeprefix(".")]
    named = re.search(r"(missing required|unknown) field `(\w+)`", what)
    if named is not None:
        steps.append(named[2])
    param = ".".join(step for step in steps if step)
    if named is None:
        return bad_request(f"{param}: {what[:1].lower()}{what[1:]}", param=param)
    return bad_request(f"{param} is {'required' if named[1] != 'unknown' else 'not supported'}", param=param)


def _prompts(value: Any) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str) or _are_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _bad_prompt("prompt", value)
    for index, item in enumerate(value):
        if not (_are_ids(item) or (isinstance(item, str) and item)):
            raise _bad_prompt("prompt" if len(value) == 1 else f"prompt[{index}]", item)
    return tuple(value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _bad_prompt(param: str, value: Any) -> ApiError:
    return bad_request(
        f"{param} must be a non-empty text, a non-empty list of token ids, or a list of either; got {_kind(value)}",
        param=param,
    )


def _kind(value: Any) -> str:
    """A JSON value in a few words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case "":
            return "an empty text"
        case str():
            return "a text"
        case []:
            return "an empty list"
        case list():
            return "a list of something else"
        case _:
            return "an object"


def _message(index: int, content: dict[str, Any]) -> dict[str, str]:
    """One message as chat templates take it: text parts joined by line breaks, "developer" is "system"."""
    unused = ("tool_calls", "function_call", "refusal", "audio", "annotations")
    said = {name: value for name, value in content.items() if not (name in unused and value in (None, []))}
    message = _convert(said, _Message, f"messages[{index}]")
    text = message.content
    if not isinstance(text, str):
        text = "\n".join(part.text for part in text)
    role = "system" if message.role == "developer" else message.role
    rendered = {"role": role, "content": text}
    return rendered if message.name is None else rendered | {"name": message.name}


def _chat_max_tokens(fields: _Chat) -> int | None:
    one, other = fields.max_tokens, fields.max_completion_tokens
    if one is not None and other is not None and one != other:
        raise bad_request(
            f"max_tokens {one} and max_completion_tokens {other} contradict each other; send one of them",
            param="max_completion_tokens",
        )
    return one if other is None else other


def _chat_logprobs(fields: _Chat) -> int | None:
    if not 0 <= fields.top_logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"top_logprobs must be an integer from 0 to {MAX_LOGPROBS}, got {fields.top_logprobs}", param="top_logprobs"
        )
    if fields.top_logprobs and not fields.logprobs:
        raise bad_request("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
    return fields.top_logprobs if fields.logprobs else None


def _include_usage(fields: _Fields) -> bool:
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise bad_request("stream_options is only allowed with stream: true", param="stream_options")
    return bool(fields.stream_options.include_usage)


def _extra_key(fields: _Fields) -> str:
    """The namespace of the prefix cache: the salt, or the one of all who send none."""
    if fields.cache_salt is None:
        return ""
    try:
        check_cache_salt(fields.cache_salt)
    except LimitError as error:
        raise bad_request(str(error), param=error.param) from error
    return fields.cache_salt


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON spells token ids as texts."""
    for token in given:
        if re.fullmatch(r"[0-9]{1,10}", token) is None:
            raise bad_request(f"logit_bias must be by token id, got {token!r}", param="logit_bias")
    return tuple((int(token), bias) for token, bias in given.items())


def _sampling(fields: _Fields, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    if fields.stream and fields.prompt_logprobs is not None:
        raise bad_request(
            "prompt_logprobs is not supported with stream: true, whose events are tokens of the answer; send"
            " stream: false",
            param="prompt_logprobs",
        )
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise bad_request(
            f"stop may hold at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH} characters, got {len(stops)}"
            f" of at most {max(map(len, stops))}",
            param="stop",
        )
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=fields.top_k,
            min_p=fields.min_p,
            seed=fields.seed,
            stop=tuple(stops),
            stop_token_ids=tuple(fields.stop_token_ids),
            ignore_eos=fields.ignore_eos,
            n=fields.n,
            logprobs=logprobs,
            prompt_logprobs=fields.prompt_logprobs,
            min_tokens=fields.min_tokens,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            repetition_penalty=fields.repetition_penalty,
            logit_bias=_logit_bias(fields.logit_bias),
        )
    except ValueError as error:  # its first word is the field
        raise bad_request(str(error), param=str(error).split()[0]) from error
