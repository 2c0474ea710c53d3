"""SGLang's native API: `POST /generate`, as its clients and its benchmark send it, without images and grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from sluice.http import unsupported_fields
from sluice.http.answers import text_of
from sluice.http.body import convert, fields_of, known_fields, read_fields
from sluice.http.errors import require
from sluice.http.generate_call import (
    ID_SCHEMA,
    Count,
    GenerateCall,
    Logprobs,
    RequestFields,
    SamplingFields,
    Seed,
    Text,
    TopK,
    checked_prompts,
    documented,
    new_request,
    sampling_params,
    some,
)
from sluice.http.generation import Generation, Usage, by_tier
from sluice.http.logprobs import finite
from sluice.text.text_stream import Piece
from sluice.types import FinishReason, TokenLogprobs

PLACE = "sampling_params"
AnyIds = Annotated[Any, documented(anyOf=[ID_SCHEMA, some(ID_SCHEMA)])]


class NativeSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `sampling_params` of a body, with SGLang's names and defaults."""

    max_tokens: Annotated[int, documented(minimum=1)] = msgspec.field(default=128, name="max_new_tokens")
    min_tokens: Count = msgspec.field(default=0, name="min_new_tokens")
    seed: Seed | None = msgspec.field(default=None, name="sampling_seed")
    top_k: TopK = -1


class NativeFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /generate`. One of `text` and `input_ids` is given."""

    text: Text | list[Text] | None = None
    input_ids: Annotated[list[AnyIds], documented(minItems=1)] | None = None
    sampling_params: dict[str, Any] = msgspec.field(default_factory=dict)
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: Annotated[int, documented(minimum=-1)] = -1
    top_logprobs_num: Logprobs = 0
    return_text_in_logprobs: bool = False
    cache_salt: str | None = msgspec.field(default=None, name="extra_key")


NAMES: Mapping[str, str] = {
    **{
        name: f"{PLACE}.{theirs}"
        for name, theirs in zip(NativeSampling.__struct_fields__, NativeSampling.__struct_encode_fields__, strict=True)
    },
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
}
"""Where a body has the fields of `SamplingParams`."""


def parse_generate(body: bytes) -> GenerateCall[NativeFields]:
    """Check the body of `POST /generate`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, NativeFields, unsupported_fields.GENERATE)
    _check_logprobs(fields)
    given = known_fields(fields.sampling_params, fields_of(NativeSampling), unsupported_fields.GENERATE_SAMPLING, PLACE)
    logprobs = fields.top_logprobs_num if fields.return_logprob else None
    sampling = sampling_params(
        convert(given, NativeSampling, PLACE),
        NAMES,
        logprobs=logprobs,
        prompt_logprobs=logprobs if fields.logprob_start_len >= 0 else None,
    )
    return GenerateCall(
        fields=fields,
        prompts=_prompts(fields, sampling.n),
        request=new_request(fields, sampling, salt_name="extra_key"),
        names=NAMES,
    )


def _check_logprobs(fields: NativeFields) -> None:
    start, name = fields.logprob_start_len, "logprob_start_len"
    message = f"{name} must be -1, or a position with return_logprob: true, got {start}"
    require(start == -1 or (start >= 0 and fields.return_logprob), message, param=name)
    message = "top_logprobs_num is only allowed with return_logprob: true"
    require(fields.return_logprob or not fields.top_logprobs_num, message, param="top_logprobs_num")


def _prompts(fields: NativeFields, samples: int) -> tuple[str | list[int], ...]:
    require((fields.text is None) != (fields.input_ids is None), "send either text or input_ids", param="text")
    if fields.text is not None:
        return checked_prompts("text", fields.text, samples)
    prompts = checked_prompts("input_ids", fields.input_ids, samples)
    message = "input_ids must be token ids, or lists of them; texts go into text"
    require(not any(isinstance(prompt, str) for prompt in prompts), message, param="input_ids")
    return prompts


class NativeAnswer:
    """The answer to `POST /generate`. As in SGLang, every event of a stream repeats the whole of its choice."""

    def __init__(self, call: GenerateCall[NativeFields], generation: Generation) -> None:
        self._fields = call.fields
        self._generation = generation
        self._id = call.fields.rid or generation.id
        self._so_far: dict[int, list[Piece]] = {}
        ids = call.fields.input_ids
        is_single = isinstance(call.fields.text, str) or (ids is not None and type(ids[0]) is int)
        self._is_list = not is_single or call.sampling.n > 1

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        pieces = self._so_far.setdefault(index, [])
        pieces.append(piece)
        chunk = self._choice(index, pieces)
        return chunk | {"index": index} if self._is_list else chunk

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return None

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        answers = [self._choice(index, pieces) for index, pieces in enumerate(choices)]
        return answers if self._is_list else answers[0]

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        choice = self._generation.choices[index]
        meta: dict[str, Any] = {
            "id": f"{self._id}_{index}" if self._is_list else self._id,
            "finish_reason": _finish_reason(pieces[-1].finish_reason, len(ids)),
            "prompt_tokens": len(choice.prompt),
            "completion_tokens": len(ids),
            "cached_tokens": choice.cached.total,
            "e2e_latency": self._generation.service.client.now() - self._generation.came_at,
        }
        meta |= by_tier(choice.cached)
        if self._fields.return_logprob:
            of_prompt = self._generation.prompt_logprobs(index)
            start = self._fields.logprob_start_len
            prompt = [] if of_prompt is None else [*zip(choice.prompt, of_prompt, strict=True)][start:]
            meta |= self._logprobs("input", prompt)
            meta |= self._logprobs(
                "output", [(piece.logprobs.token_id, piece.logprobs) for piece in pieces if piece.logprobs is not None]
            )
        return {"text": text_of(pieces), "output_ids": ids, "meta_info": meta}

    def _logprobs(self, kind: str, items: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        meta: dict[str, Any] = {
            f"{kind}_token_logprobs": [
                [None if item is None else finite(item.logprob), token, self._spelled(token)] for token, item in items
            ]
        }
        if self._fields.top_logprobs_num:
            meta[f"{kind}_top_logprobs"] = [self._top(item) for _, item in items]
        return meta

    def _top(self, item: TokenLogprobs | None) -> list[list[Any]] | None:
        if item is None:
            return None
        return [[finite(logprob), token, self._spelled(token)] for token, logprob in item.top]

    def _spelled(self, token: int) -> str | None:
        if not self._fields.return_text_in_logprobs:
            return None
        return (self._generation.service.tokenizer.spelled(token) or b"").decode(errors="replace")


def _finish_reason(reason: FinishReason | None, num_tokens: int) -> dict[str, Any] | None:
    if reason is None:
        return None
    return {"type": reason.value} | ({"length": num_tokens} if reason is FinishReason.LENGTH else {})
