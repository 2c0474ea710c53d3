"""Ollama's request schemas: the bodies of `POST /api/chat` and `POST /api/generate` to checked calls.

Sampling parameters stand in `options`, and streams are the default. A call without messages, or with an empty prompt,
loads the model in Ollama: it becomes a call without prompts, and generates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sluice.http.base.backend import Service
from sluice.http.base.body import convert, fields_of, kind_of, known_fields, read_fields
from sluice.http.base.errors import require
from sluice.http.base.model_names import is_same
from sluice.http.base.routes import Body
from sluice.http.base.unsupported_fields import IN_PARTS
from sluice.http.call.constraint_fields import ollama_shape
from sluice.http.call.fill_in import Fill
from sluice.http.call.generate_call import (
    Conversation,
    GenerateCall,
    GenerateFields,
    Logprobs,
    SamplingFields,
    Text,
    check_top_logprobs,
    documented,
    given_of,
    names_of,
    sampling_params,
    terms_of,
)
from sluice.http.call.messages import AnyMessage
from sluice.http.call.template_fields import TemplateFields, conversation_of, thinking_switches
from sluice.http.call.tools import MAX_TOOLS, TOOL_SCHEMA, ToolFields, tools_of
from sluice.text.parsers.tools import NO_TOOLS, ToolUse
from sluice.types import SamplingParams

PLACE = "options"
LEVELS = ("low", "medium", "high", "max")
"""Values of `think` for how much."""
UNLIMITED = (0, -1, -2)
"""Values of `num_predict` for as many tokens as the context holds."""
RANDOM_SEED = -1
WHOLE_CONTEXT = -1
"""The value of `repeat_last_n` by which penalties count all tokens."""


class OllamaSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `options` of a body that are sampling parameters, with Ollama's names."""

    max_tokens: Annotated[int, documented(minimum=-2)] | None = msgspec.field(default=None, name="num_predict")
    n: Literal[1] = 1
    repetition_penalty: float = msgspec.field(default=1.0, name="repeat_penalty")


NAMES: Mapping[str, str] = {**names_of(OllamaSampling, PLACE), "num_ctx": f"{PLACE}.num_ctx"}
"""Where a body has the fields of `SamplingParams`."""


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
    think: Annotated[Any, documented(enum=[True, False, *LEVELS])] = None
    format: Annotated[Any, documented(anyOf=[{"enum": ["json", ""]}, {"type": "object"}])] = None
    logprobs: bool = False
    top_logprobs: Logprobs = 0


class OllamaChatFields(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/chat`."""

    messages: list[AnyMessage] = msgspec.field(default_factory=list)
    tools: Annotated[list[dict[str, Any]], documented(items=TOOL_SCHEMA, maxItems=MAX_TOOLS)] = msgspec.field(
        default_factory=list
    )


class OllamaGenerateFields(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/generate`."""

    prompt: str = ""
    system: str = ""
    suffix: str = ""
    """The text that follows the answer: the prompt is not shown as a message."""
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
    fields = _read(service, body, OllamaChatFields)
    tools = tools_of(ToolFields(tools=fields.tools))
    messages = [_message(f"messages[{index}]", each) for index, each in enumerate(fields.messages)]
    prompts = (_conversation(messages, fields, tools),) if messages else ()
    return _call(service, fields, prompts, "messages", tools, add_special_tokens=False)


def parse_ollama_generate(service: Service, body: bytes) -> GenerateCall[OllamaGenerateFields]:
    """Check the body of `POST /api/generate`.

    A prompt is a message of the user's, unless it is raw, or the model has no chat template.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = _read(service, body, OllamaGenerateFields)
    is_raw = fields.raw or bool(fields.suffix) or not (service.tokenizer.has_chat_template or fields.system)
    what = "raw: true" if fields.raw else "suffix"
    is_alone = not ((fields.raw or fields.suffix) and fields.system)
    require(is_alone, f"{what} excludes system; send one of them", param="system")
    prompt: str | Conversation = fields.prompt
    if not is_raw:
        system = [{"role": "system", "content": fields.system}] if fields.system else []
        prompt = _conversation([*system, {"role": "user", "content": fields.prompt}], fields)
    prompts = (prompt,) if fields.prompt else ()
    tools = None if is_raw else NO_TOOLS
    call = _call(service, fields, prompts, "prompt", tools, add_special_tokens=is_raw)
    return replace(call, fill=Fill(fields.suffix)) if fields.suffix else call


def _read(service: Service, body: bytes, kind: type[B]) -> B:
    fields = read_fields(body, kind)
    require(bool(fields.model), "model is required: its name must not be empty", param="model")
    _check_think(service, fields.think)
    return fields


def _check_think(service: Service, think: Any) -> None:
    is_known = think is None or isinstance(think, bool) or think in LEVELS
    message = f"think must be true, false, {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {kind_of(think)}"
    require(is_known, message, param="think")
    message = (
        "think is only supported with false: the chat template shows no format of reasoning that is known; leave it"
        " out, or start the server with --reasoning-parser"
    )
    require(not think or service.replies.tells_reasoning, message, param="think")


def _conversation(messages: list[dict[str, Any]], fields: OllamaFields, tools: ToolUse = NO_TOOLS) -> Conversation:
    variables = {} if fields.think is None else thinking_switches(thinks=bool(fields.think))
    effort = fields.think if isinstance(fields.think, str) else None
    return conversation_of(messages, TemplateFields(chat_template_kwargs=variables, reasoning_effort=effort), tools)


def _call(
    service: Service,
    fields: B,
    prompts: tuple[str | Conversation, ...],
    prompt_name: str,
    tools: ToolUse | None,
    *,
    add_special_tokens: bool,
) -> GenerateCall[B]:
    options, others, given = read_options(fields.options)
    sampling = _sampling(options, fields)
    named = given_of(OllamaSampling, given)
    _check_repeat_last_n(others.repeat_last_n, service.sampling_defaults.fill(sampling, named))
    return GenerateCall(
        fields=fields,
        prompts=prompts,
        sampling=sampling,
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=served_name(service, fields.model),
        names={**NAMES, "prompt": prompt_name},
        tools=tools,
        shape=ollama_shape(fields.format),
        given=named,
        add_special_tokens=add_special_tokens,
        num_ctx=others.num_ctx,
        stops_in_thoughts=fields.stop_in_reasoning,
    )


def read_options(content: dict[str, Any]) -> tuple[OllamaSampling, OllamaOptions, frozenset[str]]:
    """Check the `options` of a body.

    Returns:
        The sampling parameters, the others, and the names of those sampling parameters that are given.

    Raises:
        ApiError: 400, naming the option.
    """
    known = fields_of(OllamaSampling) | fields_of(OllamaOptions)
    given = known_fields(content, known, PLACE)
    others = {name: given.pop(name) for name in fields_of(OllamaOptions) & given.keys()}
    sampling = convert(given, OllamaSampling, PLACE, {"n": "1"})
    return sampling, convert(others, OllamaOptions, PLACE), frozenset(given)


def _sampling(options: OllamaSampling, fields: OllamaFields) -> SamplingParams:
    check_top_logprobs(fields.top_logprobs, are_asked=fields.logprobs)
    most, name = options.max_tokens, NAMES["max_tokens"]
    is_fine = most is None or most > 0 or most in UNLIMITED
    message = f"{name} must be at least 1, or 0 or -1 for as many tokens as the context holds, got {most}"
    require(is_fine, message, param=name)
    return sampling_params(
        options,
        NAMES,
        max_tokens=None if most in UNLIMITED else most,
        seed=None if options.seed == RANDOM_SEED else options.seed,
        logprobs=fields.top_logprobs if fields.logprobs else None,
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
    content: Any = ""
    thinking: str | None = None
    tool_calls: list[Any] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


def _message(place: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    given = convert(known_fields(content, fields_of(OllamaMessage), place, IN_PARTS), OllamaMessage, place)
    message: dict[str, Any] = {
        "role": given.role.lower(),
        "content": given.content,
        "reasoning_content": given.thinking,
        "name": given.tool_name,
        "tool_call_id": given.tool_call_id,
        "tool_calls": given.tool_calls,
    }
    return {name: value for name, value in message.items() if value not in (None, [])}


def served_name(service: Service, name: str) -> str:
    """Return the name under which a model is served that a client calls by this name, with or without its tag.

    Raises:
        ApiError: 404, it is another model.
    """
    found = next((own for own in (*service.models, *service.adapters) if is_same(name, own)), name)
    service.check_model(found)
    return found
