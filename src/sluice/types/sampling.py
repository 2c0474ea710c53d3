"""The sampling parameters of a request."""

from __future__ import annotations

import json
import math
import random
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from sluice.types.shown import shown

MAX_TOP_K = 1 << 30
MAX_LOGPROBS = 20
"""Most alternatives reported for one token."""
MAX_LOGPROB_IDS = 128
"""Most tokens named in advance whose log-probabilities are reported in the place of each token."""
MAX_SAMPLES = 128
"""Most samples of one prompt."""
MAX_TOKEN_ID = (1 << 31) - 1
MAX_BIAS = 100
"""Largest `logit_bias`, up or down: enough to decide on its own."""
MAX_PENALTY = 2
"""Largest presence or frequency penalty, up or down."""
REPETITION_PENALTIES = (0.01, 100)
MAX_COUNT = (1 << 63) - 1
"""Largest `max_tokens` and `min_tokens`; the context holds far fewer."""
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)

Check = Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_token_id(value: Any) -> bool:
    return _is_int(value) and 0 <= value <= MAX_TOKEN_ID


def _integer(low: float, high: float = math.inf) -> Check:
    return lambda value: _is_int(value) and low <= value <= high


def _number(low: float, high: float = math.inf) -> Check:
    return lambda value: _is_number(value) and low <= value <= high


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


_PENALTY = _number(-MAX_PENALTY, MAX_PENALTY), f"a number from -{MAX_PENALTY} to {MAX_PENALTY}"
_LOGPROBS = _optional(_integer(0, MAX_LOGPROBS)), f"an integer from 0 to {MAX_LOGPROBS}"
_CHECKS: Mapping[str, tuple[Check, str]] = MappingProxyType(
    {
        "max_tokens": (_optional(_integer(1)), "an integer of at least 1"),
        "temperature": (_number(0), "a finite number of at least 0"),
        "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "in (0, 1]"),
        "top_k": (_integer(-1, MAX_TOP_K), "an integer of at least 1, or 0 or -1 for off"),
        "min_p": (_number(0, 1), "in [0, 1]"),
        "seed": (_optional(_integer(*SEED_RANGE)), "an integer of at most 64 bits"),
        "stop": (
            lambda value: all(isinstance(text, str) and text for text in value),
            "a non-empty string or a list of them",
        ),
        "stop_token_ids": (lambda value: all(map(_is_token_id, value)), "a list of token ids"),
        "ignore_eos": (lambda value: isinstance(value, bool), "true or false"),
        "n": (_integer(1, MAX_SAMPLES), f"an integer from 1 to {MAX_SAMPLES}"),
        "logprobs": _LOGPROBS,
        "logprob_token_ids": (
            lambda value: len(value) <= MAX_LOGPROB_IDS and all(map(_is_token_id, value)),
            f"a list of at most {MAX_LOGPROB_IDS} token ids",
        ),
        "prompt_logprobs": _LOGPROBS,
        "presence_penalty": _PENALTY,
        "frequency_penalty": _PENALTY,
        "regex": (lambda value: value is None or (isinstance(value, str) and value != ""), "a regular expression"),
        "grammar": (lambda value: value is None or (isinstance(value, str) and value != ""), "a grammar as text"),
        "whitespace_pattern": (lambda value: value is None or isinstance(value, str), "a regular expression"),
        "repetition_penalty": (_number(*REPETITION_PENALTIES), "in [{}, {}]".format(*REPETITION_PENALTIES)),
    }
)
"""Parameter -> its check, and what is accepted in words."""


class _CheckedBias(tuple[tuple[int, float], ...]):
    """A `logit_bias` that was checked, which parameters made of others share: it may have thousands of entries."""

    highest = -1
    """The largest token id."""


def _checked_bias(given: Any) -> _CheckedBias:
    """Return `logit_bias` as pairs, from a mapping or pairs."""
    if isinstance(given, _CheckedBias):
        return given
    try:
        bias = tuple((token, value) for token, value in (given.items() if isinstance(given, Mapping) else given))
    except (TypeError, ValueError) as error:
        raise ValueError(f"logit_bias must be numbers by token id, got {given!r}") from error
    ids, values = [token for token, _ in bias], [value for _, value in bias]
    is_plain = set(map(type, ids)) <= {int} and set(map(type, values)) <= {int, float}
    are_fine = is_plain and all(0 <= token <= MAX_TOKEN_ID for token in ids)
    if not (are_fine and all(-MAX_BIAS <= value <= MAX_BIAS for value in values)):
        _check_each(bias)
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        several = tuple(pair for pair in bias if pair[0] == twice)
        raise ValueError(f"logit_bias must be one number for each token, got {several[:2]}")
    checked = _CheckedBias(bias)
    checked.highest = max(ids, default=-1)
    return checked


def _check_each(bias: Iterable[tuple[Any, Any]]) -> None:
    """Raise ValueError for the first entry that is none, and not for numbers of other types."""
    for token, value in bias:
        if not _is_token_id(token):
            raise ValueError(f"logit_bias must be by token id, got {token!r}")
        if not (_is_number(value) and abs(value) <= MAX_BIAS):
            raise ValueError(
                f"logit_bias must be a number from -{MAX_BIAS} to {MAX_BIAS} for each token, got { {token: value}!r}"
            )


@runtime_checkable
class SchemaSource(Protocol):
    """A class that describes its instances by a JSON schema, as models of pydantic do."""

    def model_json_schema(self) -> dict[str, Any]: ...


CONSTRAINTS = ("schema", "regex", "choice", "grammar")
"""Parameters that say what the output must look like."""


def _schema_text(schema: Any) -> str | None:
    """Return a JSON schema as text, so that it can be compared and sent."""
    if schema is None or isinstance(schema, str):
        return schema
    if isinstance(schema, type) and isinstance(schema, SchemaSource):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping | bool):
        raise ValueError(f"schema must be a JSON schema as an object or text, or a pydantic model, got {schema!r}")
    try:
        return json.dumps(schema if isinstance(schema, bool) else dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema must be JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen. Field names are those of the HTTP API.

    `max_tokens=None` means as many as the context allows. `top_k` 0 or -1 is off. `temperature=0` is greedy.
    `stop` (strings) is matched against text outside the engine, which only sees `stop_token_ids`.
    `n` samples are drawn of each prompt; they differ by their number alone, so with temperature 0 they are equal.
    `logprobs` requests the log-probability of each output token and of that many of the most likely tokens beside it
    (0: its own alone, None: nothing); `prompt_logprobs` the same for the prompt's tokens from the second on, and
    then no prefix is taken from the cache. They are returned as `TokenLogprobs`. With `logprob_token_ids` the tokens
    beside each output token are these, in this order, and not the most likely ones.

    Logits are changed first, in this order: `logit_bias` is added, by token id; `repetition_penalty` divides positive
    logits, and multiplies the others, of tokens in the prompt or the output (Keskar et al., "CTRL", 2019);
    `frequency_penalty` is subtracted for each time a token was generated, and `presence_penalty` once if it was
    (OpenAI's); stop tokens are excluded until there are `min_tokens` outputs, and stop strings are not searched for in
    these.

    At most one of `schema`, `regex`, `choice` and `grammar` constrains the output: a JSON schema (an object, its text,
    or a pydantic model), a regular expression that matches all of it, some texts to choose from, or a grammar in Lark
    or GBNF. `whitespace_pattern` is a regular expression for the whitespace in the JSON of a schema; by default it is
    as `json.dumps` writes it.

    Raises:
        ValueError: a field is out of range; the message names it, its value and what would be accepted.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    n: int = 1
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, number added to its logit); a mapping is accepted too."""
    schema: Any = None
    """Schema, kept as JSON text."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logprob_token_ids", tuple(self.logprob_token_ids))
        if self.logprob_token_ids and self.logprobs is None:
            object.__setattr__(self, "logprobs", 0)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        for name in ("max_tokens", "min_tokens"):
            value = getattr(self, name)
            if _is_int(value) and value > MAX_COUNT:
                raise ValueError(f"{name} must be an integer of at most 64 bits, got {value!r}")
        for name, (is_valid, accepted) in _CHECKS.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise ValueError(f"{name} must be {accepted}, got {shown(value)}")
        self._check_min_tokens()
        self._check_constraints()

    def _check_constraints(self) -> None:
        object.__setattr__(self, "schema", _schema_text(self.schema))
        if self.choice is not None:
            texts = self.choice
            if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text for text in texts):
                raise ValueError(f"choice must be a non-empty list of non-empty texts, got {shown(texts)}")
            object.__setattr__(self, "choice", tuple(texts))
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are several constraints of one output; at most one is accepted")
        if self.whitespace_pattern is not None and self.schema is None:
            raise ValueError(f"whitespace_pattern {self.whitespace_pattern!r} is only allowed with a schema")

    def _check_min_tokens(self) -> None:
        most = math.inf if self.max_tokens is None else self.max_tokens
        if not _integer(0, most)(self.min_tokens):
            bound = "" if self.max_tokens is None else f" and at most {most}"
            raise ValueError(f"min_tokens must be an integer of at least 0{bound}, got {self.min_tokens!r}")

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on earlier tokens."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def highest_bias(self) -> int:
        """The largest token id in `logit_bias`; -1 if there is none."""
        assert isinstance(self.logit_bias, _CheckedBias), "it was checked"
        return self.logit_bias.highest

    def of_sample(self, index: int) -> SamplingParams:
        """Return the parameters of one of several samples of a prompt: only the first reports the prompt's logprobs."""
        return self if index == 0 or self.prompt_logprobs is None else replace(self, prompt_logprobs=None)

    def resolved(self, *, eos_ids: Iterable[int], room: int, seed: int) -> SamplingParams:
        """Return what the engine gets for each of the `n` samples: no text, and nothing left open.

        What constrains the output is not in it: the engine gets a grammar instead (`Submit.grammar`).

        Args:
            eos_ids: become stop ids unless `ignore_eos`.
            room: tokens that the context still holds, for an open `max_tokens`.
            seed: for an open seed.
        """
        stop_ids = set(self.stop_token_ids)
        if not self.ignore_eos:
            stop_ids.update(eos_ids)
        return replace(
            self,
            max_tokens=room if self.max_tokens is None else self.max_tokens,
            seed=seed if self.seed is None else self.seed,
            stop=(),
            stop_token_ids=tuple(sorted(stop_ids)),
            n=1,
            schema=None,
            regex=None,
            choice=None,
            grammar=None,
            whitespace_pattern=None,
        )


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What requests get that leave sampling parameters open: a model's own settings. None: the API's default.

    Raises:
        ValueError: a field is out of range; the message names it, its value and what would be accepted.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Most tokens of an answer, where a request allows as many as the context holds."""

    def __post_init__(self) -> None:
        SamplingParams(**self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def fill(self, params: SamplingParams, given: Collection[str]) -> SamplingParams:
        """Return parameters with these settings for the fields that are not among the given ones."""
        open_fields = self.as_dict().keys() - {"max_tokens", *given}
        return replace(params, **{name: getattr(self, name) for name in open_fields}) if open_fields else params

    def room(self, params: SamplingParams, room: int) -> int:
        """Return the most tokens of an answer.

        Args:
            room: tokens that the context still holds.
        """
        return room if self.max_tokens is None else min(room, max(self.max_tokens, params.min_tokens))


def seed_source(seed: int | None) -> Callable[[], int]:
    """Return a function that gives the seeds of requests without one: always the same ones for a given `seed`."""
    return partial(secrets.randbits, 63) if seed is None else partial(random.Random(seed).getrandbits, 63)
