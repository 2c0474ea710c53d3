"""SGLang's native API: `POST /generate`, as its clients and its benchmark send it, without images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.base.body import convert, fields_of, known_fields, read_fields, take_fields
from sluice.http.base.errors import require
from sluice.http.base.framing import SERVER_SENT
from sluice.http.base.progress import Progress
from sluice.http.base.routes import Body
from sluice.http.base.turns import JsonList, json_list, json_of
from sluice.http.call.answers import end_of, text_of
from sluice.http.call.constraint_fields import NativeConstraints, native_shape
from sluice.http.call.generate_call import (
    ID_SCHEMA,
    Count,
    EventFields,
    GenerateCall,
    Logprobs,
    SamplingFields,
    Seed,
    Text,
    TopK,
    checked_prompts,
    documented,
    sampling_params,
    some,
    terms_of,
)
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.logprobs import finite
from sluice.http.call.openai_answers import EndReason
from sluice.http.call.usage import CachedTokensDetails, cached_details
from sluice.text.text_stream import Piece, TextOptions
from sluice.types import FinishReason, TokenLogprobs

PLACE = "sampling_params"
MAX_RID = 256
"""Characters of an id from the client, which every event of a stream repeats."""
LARGE_EVENT = 1 << 15
"""Bytes of an output above which not every token has an event."""
GROWTH = 1 / 16
"""Share of its bytes by which such an output must have grown since its last event."""
AnyIds = Annotated[Any, documented(anyOf=[ID_SCHEMA, some(ID_SCHEMA)])]


class NativeSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `sampling_params` of a body, with SGLang's names and defaults."""

    max_tokens: Annotated[int, documented(minimum=1)] = msgspec.field(default=128, name="max_new_tokens")
    min_tokens: Count = msgspec.field(default=0, name="min_new_tokens")
    seed: Seed | None = msgspec.field(default=None, name="sampling_seed")
    top_k: TopK = -1


class NativeText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of `sampling_params` that concern the text alone."""

    skip_special_tokens: bool = True
    no_stop_trim: bool = False


class NativeFields(EventFields, kw_only=True, forbid_unknown_fields=True):
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


GENERATE_BODY = Body(
    (NativeFields,), {"sampling_params": (NativeSampling, NativeText, NativeConstraints)}, either=("text", "input_ids")
)
SAMPLING_NAMES: Mapping[str, str] = dict(
    zip(NativeSampling.__struct_fields__, NativeSampling.__struct_encode_fields__, strict=True)
)
"""Fields of `SamplingParams` -> SGLang's names for them."""
NAMES: Mapping[str, str] = {
    **{name: f"{PLACE}.{theirs}" for name, theirs in SAMPLING_NAMES.items()},
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "cache_salt": "extra_key",
}
"""Where a body has the fields of `SamplingParams`, and other fields of OpenAI's API."""


def parse_generate(body: bytes) -> GenerateCall[NativeFields]:
    """Check the body of `POST /generate`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, NativeFields)
    _check_logprobs(fields)
    length = len(fields.rid or "")
    require(length <= MAX_RID, f"rid may have at most {MAX_RID} characters, got {length}", param="rid")
    known = fields_of(NativeSampling) | fields_of(NativeText) | fields_of(NativeConstraints)
    given = known_fields(fields.sampling_params, known, PLACE)
    text = convert(take_fields(given, NativeText), NativeText, PLACE)
    constraints = convert(take_fields(given, NativeConstraints), NativeConstraints, PLACE)
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
        sampling=sampling,
        terms=terms_of(fields, itl_target=fields.itl_target, salt_name=NAMES["cache_salt"]),
        given=frozenset(name for name, theirs in SAMPLING_NAMES.items() if theirs in given),
        names=NAMES,
        shape=native_shape(constraints),
        text=TextOptions(text.skip_special_tokens, text.no_stop_trim),
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


class NativeFinishReason(msgspec.Struct):
    type: EndReason
    length: int | UnsetType = UNSET


NativeToken = Annotated[
    list[Any],
    documented(
        prefixItems=[{"type": ["number", "null"]}, {"type": "integer"}, {"type": ["string", "null"]}],
        minItems=3,
        maxItems=3,
    ),
]
"""A log-probability, the token's id, and its text if `return_text_in_logprobs` asks for it."""
NativeTokens = list[NativeToken] | UnsetType
NativeTops = list[list[NativeToken] | None] | UnsetType


class MetaInfo(msgspec.Struct, kw_only=True):
    id: str
    finish_reason: NativeFinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float
    """Seconds since the request came."""
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET
    input_token_logprobs: NativeTokens = UNSET
    input_top_logprobs: NativeTops = UNSET
    output_token_logprobs: NativeTokens = UNSET
    output_top_logprobs: NativeTops = UNSET


class Generated(msgspec.Struct, kw_only=True):
    """The output of a choice, in a stream so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
    """Given only in streams of several choices."""


class NativeAnswer:
    """The answer to `POST /generate`.

    As in SGLang, an event of a stream repeats the whole output of its choice so far. So pieces that arrived together
    become one event, and an event above `LARGE_EVENT` bytes waits until the output has grown by a share of its length:
    the bytes of a stream grow with its length and not with the square of it. The log-probabilities of the prompt are in
    the first event of a choice alone.
    """

    framing = SERVER_SENT

    def __init__(self, call: GenerateCall[NativeFields], generation: Generation) -> None:
        self._fields = call.fields
        self._generation = generation
        self._id = call.fields.rid or generation.id
        self._so_far: dict[int, _Output] = {}
        ids = call.fields.input_ids
        is_single = isinstance(call.fields.text, str) or (ids is not None and type(ids[0]) is int)
        self._is_list = not is_single or call.sampling.n > 1

    def opening(self, index: int) -> list[Generated]:
        return []

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[Generated]:
        by_choice: dict[int, list[Piece]] = {}
        for index, piece in arrived:
            by_choice.setdefault(index, []).append(piece)
        for index, pieces in by_choice.items():
            is_first = index not in self._so_far
            output = self._so_far.setdefault(index, _Output())
            self._add(output, pieces)
            if output.is_due():
                chunk = self._choice(index, output.written(), has_prompt=is_first)
                chunk.index = index if self._is_list else UNSET
                yield chunk

    def waiting(self, progress: Progress | None) -> list[Generated]:
        return []

    def closing(self, usage: Usage) -> list[Generated]:
        return []

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        if not self._is_list:
            return self._whole_choice(0, choices[0])
        return JsonList(self._whole_choice(index, pieces) for index, pieces in enumerate(choices))

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> Generated:
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        items = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        token_logprobs = json_list((self._token(item.token_id, item) for item in items), len(items))
        top_logprobs = json_list((self._top(item) for item in items), len(items))
        written = _Written(text_of(pieces), ids, len(ids), token_logprobs, top_logprobs, end_of(pieces))
        return self._choice(index, written, has_prompt=True)

    def _add(self, output: _Output, pieces: Sequence[Piece]) -> None:
        """Add pieces of a choice to its output."""
        for piece in pieces:
            output.text += json_of(piece.text)[1:-1]
            if piece.token_id is not None:
                output.ids.add(piece.token_id)
            if piece.logprobs is not None:
                output.token_logprobs.add(self._token(piece.logprobs.token_id, piece.logprobs))
                output.top_logprobs.add(self._top(piece.logprobs))
            output.finish_reason = piece.finish_reason

    def _choice(self, index: int, output: _Written, *, has_prompt: bool) -> Generated:
        choice = self._generation.choices[index]
        meta = MetaInfo(
            id=f"{self._id}_{index}" if self._is_list else self._id,
            finish_reason=_finish_reason(output.finish_reason, output.num_tokens),
            prompt_tokens=len(choice.prompt),
            completion_tokens=output.num_tokens,
            cached_tokens=choice.cached.total,
            cached_tokens_details=cached_details(choice.cached),
            e2e_latency=self._generation.service.client.now() - self._generation.came_at,
        )
        if self._fields.return_logprob:
            if has_prompt:
                self._add_prompt(meta, index)
            meta.output_token_logprobs = output.token_logprobs
            if self._fields.top_logprobs_num:
                meta.output_top_logprobs = output.top_logprobs
        return Generated(text=output.text, output_ids=output.ids, meta_info=meta)

    def _add_prompt(self, meta: MetaInfo, index: int) -> None:
        """Add the log-probabilities of a choice's prompt."""
        of_prompt, start = self._generation.prompt_logprobs(index), self._fields.logprob_start_len
        prompt = self._generation.choices[index].prompt
        items = [] if of_prompt is None else [*zip(prompt, of_prompt, strict=True)][start:]
        meta.input_token_logprobs = json_list((self._token(*item) for item in items), len(items))
        if self._fields.top_logprobs_num:
            meta.input_top_logprobs = json_list((self._top(item) for _, item in items), len(items))

    def _token(self, token: int, item: TokenLogprobs | None) -> list[Any]:
        return [None if item is None else finite(item.logprob), token, self._spelled(token)]

    def _top(self, item: TokenLogprobs | None) -> list[list[Any]] | None:
        if item is None:
            return None
        return [[finite(logprob), token, self._spelled(token)] for token, logprob in item.top]

    def _spelled(self, token: int) -> str | None:
        if not self._fields.return_text_in_logprobs:
            return None
        return (self._generation.service.tokenizer.spelled(token) or b"").decode(errors="replace")


class _Written(NamedTuple):
    """The output of a choice; in a stream `msgspec.Raw`, which is encoded already, stands in place of the values."""

    text: str
    ids: list[int]
    num_tokens: int
    token_logprobs: list[NativeToken]
    top_logprobs: list[list[NativeToken] | None]
    finish_reason: FinishReason | None


class _Array:
    """A JSON array that grows, encoded."""

    def __init__(self) -> None:
        self.count = 0
        self.content = bytearray()

    def add(self, item: Any) -> None:
        if self.count:
            self.content += b","
        self.content += json_of(item)
        self.count += 1

    def raw(self) -> Any:
        return msgspec.Raw(b"[" + self.content + b"]")


class _Output:
    """The output of a choice so far, encoded: what an event repeats is copied and not made again."""

    def __init__(self) -> None:
        self.text = bytearray()
        """A JSON string without its quotes."""
        self.ids, self.token_logprobs, self.top_logprobs = _Array(), _Array(), _Array()
        self.finish_reason: FinishReason | None = None
        self._sent = 0

    def written(self) -> _Written:
        token_logprobs, top_logprobs = self.token_logprobs.raw(), self.top_logprobs.raw()
        text: Any = msgspec.Raw(b'"' + self.text + b'"')
        return _Written(text, self.ids.raw(), self.ids.count, token_logprobs, top_logprobs, self.finish_reason)

    def is_due(self) -> bool:
        """Return whether an event is to be sent now, and count it as sent if so."""
        size = sum(map(len, (self.text, self.ids.content, self.token_logprobs.content, self.top_logprobs.content)))
        is_large = size > LARGE_EVENT and size < self._sent * (1 + GROWTH)
        if is_large and self.finish_reason is None:
            return False
        self._sent = size
        return True


def _finish_reason(reason: FinishReason | None, num_tokens: int) -> NativeFinishReason | None:
    if reason is None:
        return None
    return NativeFinishReason(reason, num_tokens if reason is FinishReason.LENGTH else UNSET)
