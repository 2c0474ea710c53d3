"""One checked call, whichever route it came by, and the request fields that the routes have in common.

A new sampling parameter is a field of `SamplingFields`, and reaches the engine by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from sluice import types
from sluice.http.base.body import are_ids, kind_of
from sluice.http.base.errors import ApiError, bad_request, require
from sluice.http.call.event_ids import EventId
from sluice.http.call.fill_in import Fill
from sluice.text.chat_template import RenderOptions
from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.tools import ToolUse
from sluice.text.text_stream import DEFAULT_TEXT, TextOptions
from sluice.types import AdapterInfo, SamplingParams
from sluice.types.request_limits import LimitError, check_cache_salt, check_stops, split_priority
from sluice.types.shown import shown

MAX_CHOICES = 4096
"""Most requests that one call may become: prompts times samples."""
MAX_BIASES = 1 << 20
"""Most biases of one call: choices times entries of `logit_bias`. Each row of a step adds its own."""
LONGEST_SECONDS = 1e7
TOKEN_ID = re.compile(r"[0-9]{1,10}")
TIERS: Mapping[str, types.ClassName] = {"priority": "interactive", "flex": "batch"}
"""OpenAI's service tiers -> classes, where there are classes. Others ask for nothing."""


def documented(**schema: Any) -> Meta:
    """Return what the published schema adds to a type. Bounds are checked elsewhere, in words that name the field."""
    return Meta(extra_json_schema=schema)


def some(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a non-empty list."""
    return {"type": "array", "minItems": 1, "items": items}


ID_SCHEMA = {"type": "integer", "minimum": 0}
Text = Annotated[str, documented(minLength=1)]
Count = Annotated[int, documented(minimum=0)]
Penalty = Annotated[float, documented(minimum=-types.MAX_PENALTY, maximum=types.MAX_PENALTY)]
Logprobs = Annotated[int, documented(minimum=0, maximum=types.MAX_LOGPROBS)]
Seconds = Annotated[float, documented(exclusiveMinimum=0, maximum=LONGEST_SECONDS)]
TopK = Annotated[int, documented(minimum=-1, maximum=types.MAX_TOP_K)]
Seed = Annotated[int, documented(minimum=types.SEED_RANGE[0], maximum=types.SEED_RANGE[1])]


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of `SamplingParams` that every generating route takes. `null` is the same as leaving a field out."""

    max_tokens: Count | None = None
    min_tokens: Count = 0
    temperature: Annotated[float, documented(minimum=0)] = 1.0
    top_p: Annotated[float, documented(exclusiveMinimum=0, maximum=1)] = 1.0
    top_k: TopK = 0
    min_p: Annotated[float, documented(minimum=0, maximum=1)] = 0.0
    seed: Seed | None = None
    stop: str | list[Text] = []
    stop_token_ids: list[Count] = []
    ignore_eos: bool = False
    n: Annotated[int, documented(minimum=1, maximum=types.MAX_SAMPLES)] = 1
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[
        float, documented(minimum=types.REPETITION_PENALTIES[0], maximum=types.REPETITION_PENALTIES[1])
    ] = 1.0
    logit_bias: dict[str, Annotated[float, documented(minimum=-types.MAX_BIAS, maximum=types.MAX_BIAS)]] = {}


class RequestFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that every route takes whose prompts go to the engine."""

    priority: int | Annotated[str, documented(enum=list(types.CLASS_NAMES))] = 0
    service_tier: str | None = None
    """OpenAI's name for a class (`TIERS`)."""
    cache_salt: str | None = None
    lora_path: str | None = None
    """SGLang's name for an adapter, beside the model's."""
    max_queue_time: Seconds | None = None
    timeout: Seconds | None = None


class GenerateFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """Fields beside those of sampling that every generating route takes."""

    stream: bool = False
    itl_target: Seconds | None = None
    stop_in_reasoning: bool = False
    """Stop strings and stop ids end the answer in its reasoning, too."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the streams of events of all routes take. Of usage, only routes whose events need not have it are asked."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Without effect: it would pad events to hide how long they are."""
    continuous_usage_stats: bool | None = None
    """vLLM's addition, which its benchmarks and guidellm use."""
    include_event_ids: bool | None = None
    """Ours: events have ids, by which the client may ask for the rest of a stream that was cut."""


class EventFields(GenerateFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of routes whose streams are server-sent events."""

    stream_options: StreamOptions | None = None


class Conversation(NamedTuple):
    """Messages as chat templates take them, and how they are rendered."""

    messages: tuple[dict[str, Any], ...]
    options: RenderOptions
    characters: int
    """Characters in all texts of messages and variables, except reasoning, which templates leave out of earlier
    turns."""


class Terms(NamedTuple):
    """What a body says of how its requests are served, as in `Submit`."""

    cache_salt: str
    """Salt as the client sends it: `CacheIsolation` makes the namespace of it."""
    priority: int
    priority_class: str
    itl_target: int


F = TypeVar("F", bound=RequestFields)
Prompt = str | list[int] | Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall(Generic[F]):
    """A checked body: what it asks for. Each prompt becomes `sampling.n` choices; of a call that embeds, one.

    The parser of its API makes it, and it is never changed: what the server adds is in `Settled`.
    """

    fields: F
    """The body."""
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    """What the body asks for. The model's settings for what it leaves open are not in it."""
    terms: Terms
    embeds: bool = False
    """The prompts are embedded, and nothing is generated."""
    model: str | None = None
    """Name of the model, or of an adapter."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names that fields have in this API where `Limits` and `SamplingParams` have others."""
    include_usage: bool = False
    include_progress: bool = False
    """A stream says how far the prompts are read."""
    continuous_usage: bool = False
    """Every event of a stream has the usage so far."""
    given: frozenset[str] = frozenset()
    """Fields of `SamplingParams` that the body sets."""
    add_special_tokens: bool = True
    """Texts get the tokens that the tokenizer adds around them. The text of a chat template has its own."""
    text: TextOptions = DEFAULT_TEXT
    tools: ToolUse | None = None
    """The answer is parsed: it may call these tools, and reason before. None: all of it is text."""
    num_ctx: int | None = None
    """Tokens of context that the client relies on; None: as many as there are."""
    fill: Fill | None = None
    """What the answer stands between. The prompts are texts."""
    shape: Shape | None = None
    """What the answers must look like, but for their tools (`generation.shape_of_answer`)."""
    fills_context: bool = False
    """`max_tokens` above what fits into the context ends the answer there, and is no error."""
    thinking_budget: int | None = None
    """Most tokens of the reasoning before an answer; None: any number."""
    stops_in_thoughts: bool = False
    """Stop strings and stop ids of the call count in the reasoning, too."""
    is_empty: bool = False
    """Nothing is to be generated: the one token that the engine samples is not sent."""

    def __post_init__(self) -> None:
        """Check what depends on prompts and sampling together.

        Raises:
            ApiError: 400, more biases than one call may have, or ids of the events of several choices.
        """
        choices, biases = len(self.prompts) * self.sampling.n, len(self.sampling.logit_bias)
        param = self.names.get("logit_bias", "logit_bias")
        message = (
            f"{choices} choices with {biases} entries of {param} each are {choices * biases} biases; at most"
            f" {MAX_BIASES} are accepted in one call"
        )
        require(choices * biases <= MAX_BIASES, message, param=param)
        message = "stream_options.include_event_ids is only allowed in a call of one choice: one prompt, and n: 1"
        require(choices == 1 or not self.include_event_ids, message, param="stream_options")

    @property
    def include_event_ids(self) -> bool:
        """Whether the answer is a stream whose events have ids (`event_ids`)."""
        fields = self.fields
        options = fields.stream_options if isinstance(fields, EventFields) and fields.stream else None
        return options is not None and bool(options.include_event_ids)


class Settled(NamedTuple):
    """What the server adds to a call, before its requests are made."""

    sampling: SamplingParams
    """Sampling parameters, with the model's settings for what the body leaves open."""
    extra_key: str = ""
    """See `Submit.extra_key`."""
    shape: Shape | None = None
    """What the answers must look like, with their tools."""
    grammar: str = ""
    """Grammar of that shape."""
    last_event: EventId | None = None
    """The last event of the stream that the client has; None: it asks for all of it."""
    adapter: AdapterInfo | None = None
    """The adapter that it is computed with."""


def names_of(kind: type[SamplingFields], place: str = "") -> dict[str, str]:
    """Return the names of the fields of `SamplingParams` in an API whose body has them as a struct does.

    Args:
        place: the object of the body that has them.
    """
    prefix = f"{place}." if place else ""
    return {name: prefix + own for name, own in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)}


def given_of(kind: type[SamplingFields], content: Collection[str]) -> frozenset[str]:
    """Return the fields of `SamplingParams` that the content of a body sets."""
    return frozenset(name for name, own in names_of(kind).items() if own in content)


def sampling_params(fields: SamplingFields, names: Mapping[str, str], **others: Any) -> SamplingParams:
    """Return the sampling parameters that a body asks for.

    Args:
        names: field -> its name in this API, where that is another one.
        others: values beside those of `fields`, or in their place.

    Raises:
        ApiError: 400, naming the field.
    """
    values = msgspec.structs.asdict(fields)
    values |= {
        "stop": _checked_stops(names.get("stop", "stop"), fields.stop),
        "logit_bias": _bias_by_id(fields.logit_bias),
    }
    try:
        return SamplingParams(**values | others)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        param = names.get(name, name)
        raise bad_request(f"{param} {rest}", param=param) from error


def terms_of(fields: RequestFields, *, itl_target: float | None = None, salt_name: str = "cache_salt") -> Terms:
    """Return what a body says of how its requests are served.

    Args:
        itl_target: seconds that its stream may stand still in a step.
        salt_name: the name of `cache_salt` in this API.

    Raises:
        ApiError: 400, a salt or a time that cannot be honoured, or an unknown class of priority.
    """
    for name, seconds in (
        ("max_queue_time", fields.max_queue_time),
        ("timeout", fields.timeout),
        ("itl_target", itl_target),
    ):
        _check_seconds(name, seconds)
    try:
        priority, priority_class = split_priority(fields.priority)
    except LimitError as error:
        raise bad_request(str(error), param="priority") from error
    salt = _checked_salt(salt_name, fields.cache_salt)
    # Above 0, a target rounds to no less than a microsecond: 0 would mean that there is none.
    micros = 0 if itl_target is None else max(1, round(itl_target * 1e6))
    return Terms(salt, priority, priority_class, micros)


def check_top_logprobs(top: int, *, are_asked: bool = True) -> None:
    """Check the field `top_logprobs` of a chat.

    Args:
        are_asked: the body asks for log-probabilities.

    Raises:
        ApiError: 400.
    """
    name, most = "top_logprobs", types.MAX_LOGPROBS
    require(0 <= top <= most, f"{name} must be an integer from 0 to {most}, got {top}", param=name)
    require(not top or are_asked, f"{name} is only allowed with logprobs: true", param=name)


def checked_prompts(name: str, value: Any, samples: int) -> tuple[str | list[int], ...]:
    """Return the prompts of a field that holds a text, token ids, or a list of either.

    Args:
        name: of the field.
        samples: of each prompt.

    Raises:
        ApiError: 400, anything else, or more choices than one call may have.
    """
    prompts = [value] if isinstance(value, str) or are_ids(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise _bad_prompt(name, prompts)
    for index, item in enumerate(prompts):
        if not (are_ids(item) or (isinstance(item, str) and item)):
            raise _bad_prompt(name if len(prompts) == 1 else f"{name}[{index}]", item)
    if len(prompts) * samples > MAX_CHOICES:
        raise bad_request(
            f"{len(prompts)} prompts with {samples} samples each are {len(prompts) * samples} choices; at most"
            f" {MAX_CHOICES} are accepted in one call",
            param=name,
        )
    return tuple(prompts)


def _bad_prompt(param: str, value: Any) -> ApiError:
    return bad_request(
        f"{param} must be a non-empty text, a non-empty list of token ids, or a list of either; got {kind_of(value)}",
        param=param,
    )


def _checked_stops(name: str, stop: str | list[str]) -> tuple[str, ...]:
    stops = tuple(each for each in ([stop] if isinstance(stop, str) else stop) if each)
    try:
        check_stops(stops)
    except LimitError as error:
        raise bad_request(str(error).replace(error.param, name, 1), param=name) from error
    return stops


def _bias_by_id(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Return biases by token id, which JSON spells as a text."""
    other = next((token for token in given if not TOKEN_ID.fullmatch(token)), None)
    require(other is None, f"logit_bias must be by token id, got {shown(other)}", param="logit_bias")
    return tuple(zip(map(int, given), given.values(), strict=True))


def _checked_salt(name: str, salt: str | None) -> str:
    if salt is None:
        return ""
    try:
        check_cache_salt(salt)
    except LimitError as error:
        raise bad_request(str(error).replace(error.param, name, 1), param=name) from error
    return salt


def _check_seconds(name: str, seconds: float | None) -> None:
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= LONGEST_SECONDS):
        raise bad_request(
            f"{name} must be a number of seconds above 0 and at most {LONGEST_SECONDS:g}, got {seconds}", param=name
        )
