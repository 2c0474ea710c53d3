"""vLLM's routes of tokens: what a call's prompts become (`.../render`), and token ids in, token ids out.

An item that `/render` answers is a body of `POST /inference/v1/generate`, so one server may cut texts into tokens and
another compute them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.backend import Service
from sluice.http.base.body import convert, fields_of, given_fields, known_fields, read_fields, take_fields
from sluice.http.base.errors import require
from sluice.http.base.framing import SERVER_SENT
from sluice.http.base.progress import Progress
from sluice.http.base.routes import Body, Routes
from sluice.http.call import generation as counts
from sluice.http.call.answers import end_of
from sluice.http.call.constraint_fields import ConstraintFields, shape_of
from sluice.http.call.generate_call import (
    Count,
    EventFields,
    GenerateCall,
    Logprobs,
    SamplingFields,
    documented,
    given_of,
    names_of,
    sampling_params,
    terms_of,
)
from sluice.http.call.generating import CallHandler
from sluice.http.call.generation import Generation
from sluice.http.call.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs, prompt_logprobs
from sluice.http.call.openai import (
    CHAT_BODY,
    COMPLETION_BODY,
    COMPLETION_MAX_TOKENS,
    ChatFields,
    CompletionFields,
    OpenAIStreamOptions,
    parse_chat,
    parse_completion,
)
from sluice.http.call.openai_answers import EndReason
from sluice.http.call.usage import Usage, usage_json
from sluice.text.text_stream import Piece, TextOptions
from sluice.types import SamplingParams, Submit

PLACE = "sampling_params"
LONGEST_ID = 256
"""Characters of an id from the client, which every event of a stream repeats."""


class TokenSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `sampling_params` of a body."""

    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    logprob_token_ids: list[Count] = msgspec.field(default_factory=list)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False


class TokenFields(EventFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /inference/v1/generate`."""

    token_ids: Annotated[list[Count], documented(minItems=1)]
    sampling_params: dict[str, Any]
    request_id: Annotated[str, documented(maxLength=LONGEST_ID)] | None = None
    model: str | None = None
    stream_options: OpenAIStreamOptions | None = None
    prompt_text: str | None = None
    """Without effect: `/render` says by it what the tokens spell."""


TOKEN_BODY = Body((TokenFields,), {PLACE: (TokenSampling, ConstraintFields)})
OWN = ("logprobs", "prompt_logprobs", "logprob_token_ids", "skip_special_tokens", "include_stop_str_in_output")
"""Fields of `TokenSampling` that are not among those of all routes."""
NAMES: Mapping[str, str] = {
    **names_of(SamplingFields, PLACE),
    **{name: f"{PLACE}.{name}" for name in OWN},
    "prompt": "token_ids",
}


class Rendered(msgspec.Struct, kw_only=True):
    """A prompt as the model would get it, with what the call asks for: a body of `POST /inference/v1/generate`."""

    request_id: str
    token_ids: list[int]
    prompt_text: str
    """What the tokens spell, special tokens by their names."""
    sampling_params: TokenSampling
    model: str
    stream: bool
    stream_options: OpenAIStreamOptions | None
    cache_salt: str | None
    priority: Any


class TokenChoice(msgspec.Struct, kw_only=True):
    index: int
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | None
    token_ids: list[int]


class TokenAnswer(msgspec.Struct, kw_only=True):
    """The answer to `POST /inference/v1/generate`, and an event of its stream, each with the tokens that it adds."""

    request_id: str
    choices: list[TokenChoice]
    usage: Usage | UnsetType = UNSET
    """In the whole answer, and in the last event of a stream that asks for it."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


def rendered(
    call: GenerateCall[ChatFields] | GenerateCall[CompletionFields],
    service: Service,
    sampling: SamplingParams,
    requests: Sequence[Submit],
) -> list[Rendered]:
    """Return the prompts of a call.

    Args:
        requests: one for each prompt.
    """
    fields, text = call.fields, call.text
    own = {name: getattr(sampling, name) for name in TokenSampling.__struct_fields__ if hasattr(sampling, name)}
    own |= {"stop": list(sampling.stop), "stop_token_ids": list(sampling.stop_token_ids)}
    own |= {"logit_bias": {str(token): bias for token, bias in sampling.logit_bias}}
    own |= {"logprob_token_ids": list(sampling.logprob_token_ids)}
    own |= {"skip_special_tokens": text.skip_special_tokens, "include_stop_str_in_output": text.include_stop}
    return [
        Rendered(
            request_id=f"render-{request.request_id}",
            token_ids=list(request.prompt),
            prompt_text=service.tokenizer.decode(request.prompt, skip_special_tokens=False),
            sampling_params=TokenSampling(**own | {"max_tokens": request.sampling.max_tokens}),
            model=service.client.adapters.name_of(request.adapter) or service.model,
            stream=fields.stream,
            stream_options=fields.stream_options,
            cache_salt=fields.cache_salt,
            priority=fields.priority,
        )
        for request in requests
    ]


def parse_tokens(body: bytes) -> GenerateCall[TokenFields]:
    """Check the body of `POST /inference/v1/generate`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, TokenFields)
    require(bool(fields.token_ids), "token_ids must not be empty", param="token_ids")
    length = len(fields.request_id or "")
    message = f"request_id may have at most {LONGEST_ID} characters, got {length}"
    require(length <= LONGEST_ID, message, param="request_id")
    known = fields_of(TokenSampling) | fields_of(ConstraintFields)
    content = known_fields(fields.sampling_params, known, PLACE)
    constraints = convert(take_fields(content, ConstraintFields), ConstraintFields, PLACE)
    given = given_fields(content, TokenSampling)
    sampling = convert(given, TokenSampling, PLACE)
    common = SamplingFields(**{name: getattr(sampling, name) for name in SamplingFields.__struct_fields__})
    options = (fields.stream_options if fields.stream else None) or OpenAIStreamOptions()
    return GenerateCall(
        fields=fields,
        prompts=(fields.token_ids,),
        sampling=sampling_params(
            common,
            NAMES,
            max_tokens=COMPLETION_MAX_TOKENS if common.max_tokens is None else common.max_tokens,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            logprob_token_ids=tuple(sampling.logprob_token_ids),
        ),
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=fields.model,
        names=NAMES,
        given=given_of(SamplingFields, given),
        shape=shape_of(constraints),
        text=TextOptions(sampling.skip_special_tokens, sampling.include_stop_str_in_output),
        include_usage=bool(options.include_usage),
    )


class TokenAnswers:
    """The answer to `POST /inference/v1/generate`."""

    framing = SERVER_SENT

    def __init__(self, call: GenerateCall[TokenFields], generation: Generation) -> None:
        self._generation = generation
        self._id = call.fields.request_id or generation.id
        self._include_usage = call.include_usage

    def opening(self, index: int) -> list[TokenAnswer]:
        return []

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[TokenAnswer]:
        for index, piece in arrived:
            choice = self._choice(index, [piece])
            choice.finish_reason = piece.finish_reason
            yield TokenAnswer(request_id=self._id, choices=[choice])

    def waiting(self, progress: Progress | None) -> list[TokenAnswer]:
        return []

    def closing(self, usage: counts.Usage) -> Iterator[TokenAnswer]:
        if self._include_usage:
            yield TokenAnswer(request_id=self._id, choices=[], usage=usage_json(usage))

    def whole(self, choices: Sequence[Sequence[Piece]], usage: counts.Usage) -> TokenAnswer:
        answers = [self._choice(index, pieces) for index, pieces in enumerate(choices)]
        for answer, pieces in zip(answers, choices, strict=True):
            answer.finish_reason = end_of(pieces)
        in_prompt, tokenizer = self._generation.prompt_logprobs(0), self._generation.service.tokenizer
        shown = UNSET if in_prompt is None else prompt_logprobs(tokenizer, in_prompt)
        return TokenAnswer(request_id=self._id, choices=answers, usage=usage_json(usage), prompt_logprobs=shown)

    def _choice(self, index: int, pieces: Sequence[Piece]) -> TokenChoice:
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        logprobs = chat_logprobs(self._generation.service.tokenizer, pieces)
        return TokenChoice(index=index, logprobs=logprobs, finish_reason=None, token_ids=ids)


def add_token_calls(routes: Routes, calls: CallHandler) -> None:
    """Add the routes that take or return token ids and no text."""

    @routes.add(
        "POST",
        "/v1/completions/render",
        summary="The prompts of a completion as tokens, without computing them (vLLM)",
        body=COMPLETION_BODY,
        answer=list[Rendered],
    )
    async def render_completion(request: Request) -> Response:
        return await calls.render(request, parse_completion, rendered)

    @routes.add(
        "POST",
        "/v1/chat/completions/render",
        summary="The prompt of a chat as tokens, without computing it (vLLM)",
        body=CHAT_BODY,
        answer=Rendered,
    )
    async def render_chat(request: Request) -> Response:
        return await calls.render(request, parse_chat, lambda *made: rendered(*made)[0])

    @routes.add(
        "POST",
        "/inference/v1/generate",
        summary="Token ids in, token ids out (vLLM)",
        body=TOKEN_BODY,
        answer=TokenAnswer,
        events=TokenAnswer,
    )
    async def generate(request: Request) -> Response:
        return await calls.generate(request, parse_tokens, TokenAnswers)
