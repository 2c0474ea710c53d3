"""SGLang's own API: `POST /generate`, as its clients and its benchmark send it; no images and no grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sluice.http.answers import Choice, Head
from sluice.http.errors import bad_request
from sluice.http.generate_call import CompletionCall, checked_choices, checked_salt, checked_seconds, checked_stops
from sluice.http.generation import Generation, Usage, by_tier
from sluice.http.json_body import convert, fields_of, json_object
from sluice.http.logprobs import finite
from sluice.http.openai import Count, Logprobs, Seconds, Text, checked_prompts, checked_sampling, logit_bias_by_id
from sluice.http.unsupported_fields import GENERATE_ASKS_NOTHING, GENERATE_SAMPLING_ASKS_NOTHING, without_inert
from sluice.text.text_stream import Piece
from sluice.types import FinishReason, SamplingParams, TokenLogprobs

THEIR_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
MAX_NEW_TOKENS = 128
"""SGLang's default."""
NAMES: Mapping[str, str] = {
    name: f"sampling_params.{THEIR_NAMES.get(name, name)}"
    for name in (field.name for field in fields(SamplingParams))
    if name not in ("logprobs", "prompt_logprobs")
} | {"logprobs": "top_logprobs_num", "prompt_logprobs": "top_logprobs_num"}
"""Where a body says what `SamplingParams` names."""


AnyIds = Annotated[
    Any,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
]


class NativeSampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `sampling_params` of a body."""

    max_new_tokens: Annotated[int, Meta(extra_json_schema={"minimum": 1})] = MAX_NEW_TOKENS
    min_new_tokens: Count = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    sampling_seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[Count] = []
    ignore_eos: bool = False
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}


class NativeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /generate`. One of `text` and `input_ids` is given."""

    text: Text | list[Text] | None = None
    input_ids: Annotated[list[AnyIds], Meta(extra_json_schema={"minItems": 1})] | None = None
    sampling_params: dict[str, Any] = {}
    stream: bool = False
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Meta(extra_json_schema={"minimum": -1})] = -1
    top_logprobs_num: Logprobs = 0
    return_text_in_logprobs: bool = False
    priority: int = 0
    extra_key: str | None = None
    max_queue_time: Seconds | None = None
    timeout: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall(CompletionCall):
    """`POST /generate`."""

    names: ClassVar[Mapping[str, str]] = NAMES
    is_batch: bool
    """The answer is a list."""
    rid: str | None
    logprob_start: int
    """First token of the prompt that is told of; -1 for none."""
    top_logprobs: int
    spells_logprobs: bool
    """Log-probabilities come with the token's text."""


def parse_generate(body: bytes) -> GenerateCall:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    content = without_inert(json_object(body), fields_of(NativeFields), GENERATE_ASKS_NOTHING)
    fields = convert(content, NativeFields)
    if (fields.text is None) == (fields.input_ids is None):
        raise bad_request("send either text or input_ids", param="text")
    prompts = (
        checked_prompts("input_ids", fields.input_ids) if fields.text is None else checked_prompts("text", fields.text)
    )
    if fields.text is None and any(isinstance(prompt, str) for prompt in prompts):
        raise bad_request("input_ids must be token ids, or lists of them; texts go into text", param="input_ids")
    if fields.logprob_start_len < -1 or (fields.logprob_start_len >= 0 and not fields.return_logprob):
        raise bad_request(
            f"logprob_start_len must be -1, or a position with return_logprob: true, got {fields.logprob_start_len}",
            param="logprob_start_len",
        )
    if fields.top_logprobs_num and not fields.return_logprob:
        raise bad_request("top_logprobs_num is only allowed with return_logprob: true", param="top_logprobs_num")
    given = without_inert(
        fields.sampling_params, fields_of(NativeSampling), GENERATE_SAMPLING_ASKS_NOTHING, "sampling_params"
    )
    wish = convert(given, NativeSampling, "sampling_params")
    logprobs = fields.top_logprobs_num if fields.return_logprob else None
    sampling = checked_sampling(
        NAMES,
        max_tokens=wish.max_new_tokens,
        min_tokens=wish.min_new_tokens,
        temperature=wish.temperature,
        top_p=wish.top_p,
        top_k=wish.top_k,
        min_p=wish.min_p,
        seed=wish.sampling_seed,
        stop=checked_stops(wish.stop),
        stop_token_ids=tuple(wish.stop_token_ids),
        ignore_eos=wish.ignore_eos,
        n=wish.n,
        presence_penalty=wish.presence_penalty,
        frequency_penalty=wish.frequency_penalty,
        repetition_penalty=wish.repetition_penalty,
        logit_bias=logit_bias_by_id(wish.logit_bias),
        logprobs=logprobs,
        prompt_logprobs=logprobs if fields.logprob_start_len >= 0 else None,
    )
    checked_choices(len(prompts), sampling.n)
    is_one = isinstance(fields.text, str) or (fields.input_ids is not None and type(fields.input_ids[0]) is int)
    return GenerateCall(
        prompts=prompts,
        sampling=sampling,
        stream=fields.stream,
        priority=fields.priority,
        extra_key=checked_salt("extra_key", fields.extra_key),
        max_queue_time=checked_seconds("max_queue_time", fields.max_queue_time),
        timeout=checked_seconds("timeout", fields.timeout),
        is_batch=not is_one or sampling.n > 1,
        rid=fields.rid,
        logprob_start=fields.logprob_start_len,
        top_logprobs=fields.top_logprobs_num,
        spells_logprobs=fields.return_text_in_logprobs,
    )


class NativeAnswer:
    """The answer to `POST /generate`. A stream repeats the whole of a choice in every event, as SGLang's does.

    Args:
        head: of this call.
        call: what was asked.
        generation: knows the tokens of each choice's prompt, and how many were cached.
        came_at: when the call came, in the client's seconds.
    """

    def __init__(self, head: Head, call: GenerateCall, generation: Generation, came_at: float) -> None:
        self._service = head.service
        self._call = call
        self._generation = generation
        self._came_at = came_at
        self._id = call.rid or head.id
        self._so_far: dict[int, list[Piece]] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        pieces = self._so_far.setdefault(index, [])
        pieces.append(piece)
        chunk = self._choice(index, pieces)
        return chunk | {"index": index} if self._call.is_batch else chunk

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return None

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Any:
        told = [self._choice(index, choice.pieces) for index, choice in enumerate(choices)]
        return told if self._call.is_batch else told[0]

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        prompt, cached = self._generation.prompt_of(index), self._generation.cached_of(index)
        meta: dict[str, Any] = {
            "id": f"{self._id}_{index}" if self._call.is_batch else self._id,
            "finish_reason": _finish_reason(pieces[-1].finish_reason, len(ids)),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "cached_tokens": cached.total,
            "e2e_latency": self._service.client.now() - self._came_at,
        }
        meta |= by_tier(cached)
        if self._call.sampling.logprobs is not None:
            meta |= self._logprobs(index, prompt, pieces)
        return {"text": "".join(piece.text for piece in pieces), "output_ids": ids, "meta_info": meta}

    def _logprobs(self, index: int, prompt: Sequence[int], pieces: Sequence[Piece]) -> dict[str, Any]:
        told = [(piece.logprobs.token_id, piece.logprobs) for piece in pieces if piece.logprobs is not None]
        start = self._call.logprob_start
        of_prompt = self._generation.prompt_logprobs(index) if start >= 0 else None
        ours = [] if of_prompt is None else [*zip(prompt, of_prompt, strict=True)][start:]
        meta: dict[str, Any] = {
            "input_token_logprobs": [self._own(token, item) for token, item in ours],
            "output_token_logprobs": [self._own(token, item) for token, item in told],
        }
        if self._call.top_logprobs:
            meta["input_top_logprobs"] = [self._top(item) for _, item in ours]
            meta["output_top_logprobs"] = [self._top(item) for _, item in told]
        return meta

    def _own(self, token: int, item: TokenLogprobs | None) -> list[Any]:
        return [None if item is None else finite(item.logprob), token, self._spelled(token)]

    def _top(self, item: TokenLogprobs | None) -> list[list[Any]] | None:
        if item is None:
            return None
        return [[finite(logprob), token, self._spelled(token)] for token, logprob in item.top]

    def _spelled(self, token: int) -> str | None:
        if not self._call.spells_logprobs:
            return None
        return (self._service.tokenizer.spelled(token) or b"").decode(errors="replace")


def _finish_reason(reason: FinishReason | None, num_tokens: int) -> dict[str, Any] | None:
    if reason is None:
        return None
    return {"type": reason.value} | ({"length": num_tokens} if reason is FinishReason.LENGTH else {})
