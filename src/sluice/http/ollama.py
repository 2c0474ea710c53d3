"""Ollama's request schemas: the bodies of `POST /api/chat` and `POST /api/generate` to checked calls.

Sampling parameters stand in `options`, and streams are the default. A call without messages, or with an empty prompt,
loads the model in Ollama: it becomes a call without prompts, and generates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sluice.http import unsupported_fields
from sluice.http.backend import Service
from sluice.http.body import convert, fields_of, json_object, known_fields
from sluice.http.errors import require
from sluice.http.generate_call import (
    Conversation,
    GenerateCall,
    GenerateFields,
    Logprobs,
    SamplingFields,
    Text,
    documented,
    new_request,
    sampling_params,
)
from sluice.http.messages import AnyMessage
from sluice.http.ollama_names import served_name
from sluice.http.routes import Body
from sluice.http.template_fields import TemplateFields, conversation_of
from sluice.types import MAX_LOGPROBS, SamplingParams

PLACE = "options"
UNLIMITED = (-1, -2)
"""Values of `num_predict` for as many tokens as the context holds."""
RANDOM_SEED = -1
WHOLE_CONTEXT = -1
"""The value of `repeat_last_n` by which penalties count all tokens."""
OPTION_NAMES: Mapping[str, str] = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
"""Fields of `SamplingParams` -> Ollama's names, where these are others."""
NAMES: Mapping[str, str] = {
    name: f"{PLACE}.{OPTION_NAMES.get(name, name)}" for name in (*SamplingFields.__struct_fields__, "num_ctx")
}
"""Where a body has the fields of `SamplingParams`."""


class OllamaSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `options` of a body that are sampling parameters, with Ollama's names."""

    max_tokens: Annotated[int, documented(minimum=-2)] | None = msgspec.field(default=None, name="num_predict")
    n: Literal[1] = 1
    repetition_penalty: float = msgspec.field(default=1.0, name="repeat_penalty")


class OllamaOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The other `options`."""

    num_ctx: Annotated[int, documented(minimum=1)] | None = None
    """Tokens of context that the client relies on."""
    repeat_last_n: Annotated[int, documented(minimum=-1)] | None = None


class OllamaFields(GenerateFields, kw_only=True, forbid_unknown_fields=True):
    """What the bodies of both routes have in common."""

    model: Text
    stream: bool = True
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    think: Annotated[Any, documented(const=False)] = None
    logprobs: bool = False
    top_logprobs: Logprobs = 0


class OllamaChatFields(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/chat`."""

    messages: list[AnyMessage] = msgspec.field(default_factory=list)


class OllamaGenerateFields(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/generate`."""

    prompt: str = ""
    system: str = ""
    raw: bool = False


OLLAMA_CHAT_BODY, OLLAMA_GENERATE_BODY = (
    Body((kind,), nested={PLACE: (OllamaSampling, OllamaOptions)}) for kind in (OllamaChatFields, OllamaGenerateFields)
)
B = TypeVar("B", bound=OllamaFields)


def parse_ollama_chat(service: Service, body: bytes) -> GenerateCall[OllamaChatFields]:
    """Check the body of `POST /api/chat`.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = _read(body, OllamaChatFields, unsupported_fields.OLLAMA_CHAT)
    messages = [_message(f"messages[{index}]", each) for index, each in enumerate(fields.messages)]
    prompts = (_conversation(messages, fields),) if messages else ()
    return _call(service, fields, prompts, "messages", add_special_tokens=False)


def parse_ollama_generate(service: Service, body: bytes) -> GenerateCall[OllamaGenerateFields]:
    """Check the body of `POST /api/generate`.

    A prompt is a message of the user's, unless it is raw, or the model has no chat template.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = _read(body, OllamaGenerateFields, unsupported_fields.OLLAMA_GENERATE)
    is_raw = fields.raw or not (service.tokenizer.has_chat_template or fields.system)
    require(not (fields.raw and fields.system), "raw: true excludes system; send one of them", param="system")
    prompt: str | Conversation = fields.prompt
    if not is_raw:
        system = [{"role": "system", "content": fields.system}] if fields.system else []
        prompt = _conversation([*system, {"role": "user", "content": fields.prompt}], fields)
    return _call(service, fields, (prompt,) if fields.prompt else (), "prompt", add_special_tokens=is_raw)


def _read(body: bytes, kind: type[B], unsupported: Mapping[str, Any]) -> B:
    content = known_fields(
        json_object(body), fields_of(kind), unsupported, instead=unsupported_fields.OLLAMA_SEND_INSTEAD
    )
    fields = convert(content, kind)
    require(bool(fields.model), "model is required: its name must not be empty", param="model")
    require(
        fields.think is None or fields.think is False,
        "think is only supported with false: reasoning is not told from the answer; leave it out, or send false",
        param="think",
    )
    return fields


def _conversation(messages: list[dict[str, Any]], fields: OllamaFields) -> Conversation:
    variables = {} if fields.think is None else {"enable_thinking": False}
    return conversation_of(messages, TemplateFields(chat_template_kwargs=variables))


def _call(
    service: Service,
    fields: B,
    prompts: tuple[str | Conversation, ...],
    prompt_name: str,
    *,
    add_special_tokens: bool,
) -> GenerateCall[B]:
    known = fields_of(OllamaSampling) | fields_of(OllamaOptions)
    given = known_fields(fields.options, known, unsupported_fields.OLLAMA_OPTIONS, PLACE, instead={})
    others = convert({name: given.pop(name) for name in fields_of(OllamaOptions) & given.keys()}, OllamaOptions, PLACE)
    sampling = _sampling(convert(given, OllamaSampling, PLACE, {"n": "1"}), fields)
    named = frozenset(name for name in NAMES if OPTION_NAMES.get(name, name) in given)
    _check_repeat_last_n(others.repeat_last_n, service.sampling_defaults.fill(sampling, named))
    return GenerateCall(
        fields=fields,
        prompts=prompts,
        request=new_request(fields, sampling, itl_target=fields.itl_target),
        model=served_name(service, fields.model),
        names={**NAMES, "prompt": prompt_name},
        given=named,
        add_special_tokens=add_special_tokens,
        num_ctx=others.num_ctx,
    )


def _sampling(options: OllamaSampling, fields: OllamaFields) -> SamplingParams:
    top, name = fields.top_logprobs, "top_logprobs"
    require(0 <= top <= MAX_LOGPROBS, f"{name} must be an integer from 0 to {MAX_LOGPROBS}, got {top}", param=name)
    require(not top or fields.logprobs, f"{name} is only allowed with logprobs: true", param=name)
    most, name = options.max_tokens, NAMES["max_tokens"]
    is_fine = most is None or most > 0 or most in UNLIMITED
    message = f"{name} must be at least 1, or -1 for as many tokens as the context holds, got {most}"
    require(is_fine, message, param=name)
    return sampling_params(
        options,
        NAMES,
        max_tokens=None if most in UNLIMITED else most,
        seed=None if options.seed == RANDOM_SEED else options.seed,
        logprobs=top if fields.logprobs else None,
    )


def _check_repeat_last_n(count: int | None, sampling: SamplingParams) -> None:
    """Refuse a window of the penalties, unless there is no penalty, the model's own included."""
    has_penalty = sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    message = (
        f"{PLACE}.repeat_last_n {count} is not supported with penalties, which count all tokens here; leave it out, or"
        f" send {WHOLE_CONTEXT}"
    )
    require(count in (None, WHOLE_CONTEXT) or not has_penalty, message, param=f"{PLACE}.repeat_last_n")


class OllamaMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message in Ollama's form."""

    role: str
    content: str = ""
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(msgspec.Struct):
    """The `function` of a call of a tool. Other fields are what clients repeat from answers."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaToolCall(msgspec.Struct):
    function: OllamaFunction
    id: str | None = None


def _message(place: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    unsupported = unsupported_fields.OLLAMA_MESSAGE
    given = convert(known_fields(content, fields_of(OllamaMessage), unsupported, place), OllamaMessage, place)
    calls = [
        convert(call, OllamaToolCall, f"{place}.tool_calls[{index}]")
        for index, call in enumerate(given.tool_calls or ())
    ]
    message: dict[str, Any] = {
        "role": given.role.lower(),
        "content": given.content,
        "reasoning_content": given.thinking,
        "name": given.tool_name,
        "tool_call_id": given.tool_call_id,
        "tool_calls": [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in calls
        ],
    }
    return {name: value for name, value in message.items() if value not in (None, [])}
