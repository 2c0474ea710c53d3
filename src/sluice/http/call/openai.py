"""OpenAI's request schemas: the body of a completion or a chat to a checked call.

Fields that would change the answer and are not implemented are refused by name (see `unsupported_fields`).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from sluice.http.base.body import convert, fields_of, given_fields, json_object, known_fields, take_fields
from sluice.http.base.errors import require
from sluice.http.base.routes import Body
from sluice.http.base.unknown_fields import ignore
from sluice.http.call.constraint_fields import ConstraintFields, shape_of
from sluice.http.call.fill_in import Fill
from sluice.http.call.generate_call import (
    ID_SCHEMA,
    Count,
    EventFields,
    GenerateCall,
    Logprobs,
    SamplingFields,
    StreamOptions,
    check_top_logprobs,
    checked_prompts,
    documented,
    sampling_params,
    some,
    terms_of,
)
from sluice.http.call.messages import AnyMessage
from sluice.http.call.template_fields import TemplateFields, conversation_of
from sluice.http.call.thinking_budget import one_budget
from sluice.http.call.tools import ToolFields, tools_of
from sluice.text.constraints.shapes import Shape
from sluice.text.text_stream import TextOptions
from sluice.types import SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""

TEXT_SCHEMA = {"type": "string", "minLength": 1}
PROMPT_SCHEMA = {"anyOf": [TEXT_SCHEMA, some(TEXT_SCHEMA), some(ID_SCHEMA), some(some(ID_SCHEMA))]}


class OpenAIStreamOptions(StreamOptions, kw_only=True, forbid_unknown_fields=True):
    include_progress: bool | None = None
    """Ours: events say how far the prompts are read."""


class OpenAIFields(EventFields, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common beside `SamplingFields`, which stand next to these in a body."""

    model: str | None = None
    stream_options: OpenAIStreamOptions | None = None
    max_completion_tokens: Count | None = None
    best_of: Count | None = None
    prompt_logprobs: Logprobs | None = None
    logprob_token_ids: list[Count] = msgspec.field(default_factory=list)
    """Tokens that are reported in the place of the most likely ones; only with log-probabilities."""
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    store: bool = False
    """Answers are never stored; an answer to `true` says so."""
    num_ctx: Annotated[int, documented(minimum=1)] | None = None
    """Tokens of context that the client relies on."""


class CompletionFields(OpenAIFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[Any, documented(**PROMPT_SCHEMA)]
    logprobs: Logprobs | None = None
    echo: bool = False
    suffix: str = ""
    """The text that follows the answer, for models with tokens to fill in the middle."""
    add_special_tokens: bool = True


class ChatFields(OpenAIFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[AnyMessage], documented(minItems=1)]
    logprobs: bool = False
    top_logprobs: Logprobs = 0
    thinking_token_budget: Count | None = None
    """Most tokens of the reasoning, by vLLM's name; `thinking_budget` is Qwen's, and `reasoning` OpenRouter's object
    with `max_tokens`. `thinking` may have `budget_tokens` beside its type."""
    thinking_budget: Count | None = None
    reasoning: dict[str, Any] = msgspec.field(default_factory=dict)


COMPLETION_BODY = Body((CompletionFields, SamplingFields, ConstraintFields))
CHAT_BODY = Body((ChatFields, SamplingFields, ConstraintFields, TemplateFields, ToolFields))
B = TypeVar("B", bound=OpenAIFields)


def parse_completion(body: bytes) -> GenerateCall[CompletionFields]:
    """Check the body of a completion.

    Raises:
        ApiError: 400, naming the field.
    """
    fields, sampling, _, shape, given = _read(json_object(body), CompletionFields)
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
        logprob_token_ids=_named_tokens(fields, has_logprobs=fields.logprobs is not None),
    )
    prompts = checked_prompts("prompt", fields.prompt, params.n)
    are_texts = all(isinstance(each, str) for each in prompts)
    require(not fields.suffix or are_texts, "suffix needs a prompt that is a text", param="suffix")
    require(not (fields.suffix and fields.echo), "suffix excludes echo: true; send one of them", param="suffix")
    return _call(
        fields,
        params,
        prompts=prompts,
        shape=shape,
        given=given,
        is_empty=is_empty,
        fill=Fill(fields.suffix) if fields.suffix else None,
        add_special_tokens=fields.add_special_tokens,
    )


def parse_chat(body: bytes) -> GenerateCall[ChatFields]:
    """Check the body of a chat.

    Raises:
        ApiError: 400, naming the field.
    """
    content = json_object(body)
    tools = tools_of(convert(given_fields(content, ToolFields), ToolFields))
    fields, sampling, template, shape, given = _read(content, ChatFields)
    check_top_logprobs(fields.top_logprobs, are_asked=fields.logprobs)
    max_tokens, name = _max_tokens(fields, sampling)
    params = sampling_params(
        sampling,
        {"max_tokens": name},
        max_tokens=max_tokens,
        logprobs=fields.top_logprobs if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
        logprob_token_ids=_named_tokens(fields, has_logprobs=fields.logprobs),
    )
    prompt = conversation_of(fields.messages, template, tools)
    budget, name = _thinking_budget(fields, template)
    return _call(
        fields,
        params,
        prompts=(prompt,),
        shape=shape,
        given=given,
        names={"prompt": "messages", "thinking_budget": name},
        add_special_tokens=False,
        tools=tools,
        thinking_budget=budget,
    )


def _thinking_budget(fields: ChatFields, template: TemplateFields) -> tuple[int | None, str]:
    """Return the most tokens of reasoning, and the field that says so."""
    ignore(f"reasoning.{name}" for name in fields.reasoning if name != "max_tokens")
    return one_budget(
        {
            "thinking_token_budget": fields.thinking_token_budget,
            "thinking_budget": fields.thinking_budget,
            "reasoning.max_tokens": fields.reasoning.get("max_tokens"),
            "thinking.budget_tokens": (template.thinking or {}).get("budget_tokens"),
        }
    )


def _read(
    content: dict[str, Any], kind: type[B]
) -> tuple[B, SamplingFields, TemplateFields, Shape | None, frozenset[str]]:
    """Split a body into the fields of sampling, those of the chat template, what constrains the answer, and the others.

    The last value is the names of the fields of sampling that the body has.
    """
    of_chat = fields_of(TemplateFields) | fields_of(ToolFields) if kind is ChatFields else frozenset[str]()
    own = fields_of(kind) | fields_of(SamplingFields) | fields_of(ConstraintFields)
    content = known_fields(content, own | of_chat)
    sampling = take_fields(content, SamplingFields)
    template = take_fields(content, TemplateFields)
    constraints = convert(take_fields(content, ConstraintFields), ConstraintFields)
    settings = convert(sampling, SamplingFields), convert(template, TemplateFields), shape_of(constraints)
    return convert(content, kind), *settings, frozenset(sampling)


def _max_tokens(fields: OpenAIFields, sampling: SamplingFields) -> tuple[int | None, str]:
    """Return the value of `max_tokens` or `max_completion_tokens`, which mean the same, and the name that was used."""
    one, other = sampling.max_tokens, fields.max_completion_tokens
    require(
        one is None or other is None or one == other,
        f"max_tokens {one} and max_completion_tokens {other} contradict each other; send one of them",
        param="max_completion_tokens",
    )
    return (other, "max_completion_tokens") if one is None else (one, "max_tokens")


def _named_tokens(fields: OpenAIFields, *, has_logprobs: bool) -> tuple[int, ...]:
    message = "logprob_token_ids are only allowed with logprobs"
    require(has_logprobs or not fields.logprob_token_ids, message, param="logprob_token_ids")
    return tuple(fields.logprob_token_ids)


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
    options = (fields.stream_options if fields.stream else None) or OpenAIStreamOptions()
    message = "stream_options.continuous_usage_stats is only allowed with include_usage: true"
    require(bool(options.include_usage) or not options.continuous_usage_stats, message, param="stream_options")
    return GenerateCall(
        fields=fields,
        sampling=params,
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=fields.model,
        num_ctx=fields.num_ctx,
        stops_in_thoughts=fields.stop_in_reasoning,
        text=TextOptions(fields.skip_special_tokens, fields.include_stop_str_in_output),
        include_usage=bool(options.include_usage),
        include_progress=bool(options.include_progress),
        continuous_usage=bool(options.continuous_usage_stats),
        **others,
    )
