"""Limits of a request to a loaded model. The server and `LLM` check them before a request reaches the engine.

Nothing is truncated: a request that cannot be honoured completely is refused, with the numbers that decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.types import CLASS_NAMES, DEFAULT_CLASS, Priority, PriorityClass, SamplingParams, Tier, why_none_longer
from sluice.types.sampling import CONSTRAINTS
from sluice.types.shown import shown
from sluice.types.submit import ADAPTER_MARK

MAX_CACHE_SALT = 256
"""Characters of a `cache_salt`."""
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
"""Characters. Stop strings cost time for every token of every stream."""
PRIORITIES = (-(1 << 63), (1 << 63) - 1)
NO_TIER = "tier_unavailable"
"""Code of the error of a request whose tier is disabled or has failed."""


class LimitError(ValueError):
    """A request that the loaded model or its KV pool cannot honour.

    `param` is the field's name in the HTTP API; `code` is OpenAI's where one exists.
    """

    def __init__(self, message: str, *, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class TierDisabled(LimitError):
    """A request that needs a tier without which the engine was restarted. It may be accepted after another restart."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of a loaded engine that bound a request.

    `max_model_len` is the model's longest context, `max_total_tokens` the size of the KV pool, both in tokens;
    `knows_priority` is whether requests are ordered by priority.
    """

    vocab_size: int
    max_model_len: int
    max_total_tokens: int
    knows_priority: bool = False
    max_offloaded_tokens: int = 0
    """Tokens that the tier of contexts longer than the pool holds; 0: there is no such tier."""
    token_bytes: int = 0
    """Bytes of a token's KV in all layers."""
    disabled_tier: Tier | None = None
    """The tier that would hold longer contexts, if the engine was restarted without it."""
    embedding_size: int = 0
    """Numbers of an embedding."""
    no_generation: str | None = None
    """Why the model generates nothing, if it does not."""
    no_embeddings: str | None = None
    """Why the model makes no embeddings, if it does not."""
    itl_target: int = 0
    """Microseconds of the engine's ITL target; 0: it has none; below 0: it follows the time of decodes."""
    classes: tuple[PriorityClass, ...] = ()
    """Priority classes, from the most urgent to the least; empty where requests are not ordered by deadline."""
    block_size: int = 0
    """Tokens that a model of block diffusion fills in at a time; 0: it generates token by token."""
    media_token_ids: frozenset[int] = frozenset()
    """Tokens that stand for images and sound, which the engine does not take."""

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request, prompt and output together."""
        return min(self.max_model_len, max(self.max_total_tokens, self.max_offloaded_tokens))

    def check(self, prompt: Sequence[int], max_tokens: int | None) -> int:
        """Check a prompt and the number of tokens to generate.

        Args:
            prompt: token ids.
            max_tokens: output tokens; None means as many as fit.

        Returns:
            The number of output tokens that fit after the prompt, at least 1: `room` for `SamplingParams.resolved`.

        Raises:
            LimitError: an empty prompt, an id outside the vocabulary, or prompt + max_tokens over a limit; a model that
                generates nothing.
        """
        if self.no_generation is not None:
            raise LimitError(f"this model generates nothing: {self.no_generation}", param="model", code="unsupported")
        length = len(prompt)
        room = self.max_request_tokens - length
        if room < 1:  # first, as it costs nothing
            what = f"the prompt has {length} tokens and needs room for at least 1 more"
            raise self._too_long(what, length + (max_tokens or 1), "prompt")
        self._check_ids(prompt)
        if max_tokens is not None and max_tokens > room:
            raise self._too_long(
                f"prompt of {length} tokens + max_tokens {max_tokens} = {length + max_tokens} tokens",
                length + max_tokens,
                "max_tokens",
            )
        return room

    def check_embedded(self, prompt: Sequence[int]) -> None:
        """Check a prompt that is to be embedded.

        Raises:
            LimitError: an empty prompt, an id outside the vocabulary, or a length over a limit; a model that makes no
                embeddings.
        """
        if self.no_embeddings is not None:
            raise LimitError(f"this model makes no embeddings: {self.no_embeddings}", param="model", code="unsupported")
        if len(prompt) > self.max_request_tokens:
            raise self._too_long(f"the prompt has {len(prompt)} tokens", len(prompt), "prompt")
        self._check_ids(prompt)

    def check_dimensions(self, dimensions: int | None) -> None:
        """Check the length that embeddings are cut to.

        Raises:
            LimitError: it is below 1, or above that of the model's embeddings.
        """
        is_whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
        if dimensions is not None and not (is_whole and 1 <= dimensions <= self.embedding_size):
            raise LimitError(
                f"dimensions must be from 1 to {self.embedding_size}, the length of this model's embeddings,"
                f" got {dimensions!r}",
                param="dimensions",
            )

    def check_length(self, length: int) -> None:
        """Check a number of tokens, prompt and output together.

        Raises:
            LimitError: below 2, or over a limit.
        """
        if not isinstance(length, int) or isinstance(length, bool) or length < 2:
            raise LimitError(
                f"length must be at least 2, a token of prompt and one of output, got {length!r}", param="length"
            )
        if length > self.max_request_tokens:
            raise self._too_long(f"a request of {length} tokens", length, "length")

    def check_sampling(self, prompt: Sequence[int], sampling: SamplingParams) -> int:
        """Check a prompt as `check` does, and its sampling parameters against the vocabulary and the room.

        Raises:
            LimitError: as `check`; a stop token or bias outside the vocabulary, or more `min_tokens` than fit; what a
                model of block diffusion cannot give.
        """
        room = self.check(prompt, sampling.max_tokens)
        if self.block_size:
            self._check_of_blocks(sampling)
        if sampling.min_tokens > room:
            what = f"prompt of {len(prompt)} tokens + min_tokens {sampling.min_tokens}"
            raise self._too_long(what, len(prompt) + sampling.min_tokens, "min_tokens")
        named = {"stop_token_ids": sampling.stop_token_ids, "logprob_token_ids": sampling.logprob_token_ids}
        highest = {param: max(ids) for param, ids in named.items() if ids}
        highest["logit_bias"] = sampling.highest_bias
        for param, token in highest.items():
            if token >= self.vocab_size:
                raise LimitError(
                    f"token id {token} in {param} is outside the vocabulary: ids are 0 to {self.vocab_size - 1}",
                    param=param,
                )
        return room

    def check_constraint(self, param: str = "response_format") -> None:
        """Check that outputs may be constrained, by a schema, say.

        Raises:
            LimitError: they may not.
        """
        if self.block_size:
            raise self._not_of_blocks(param, "which fills in tokens in any order")

    def _check_of_blocks(self, sampling: SamplingParams) -> None:
        """Check parameters of a model of block diffusion, whose tokens do not come one after the other."""
        constraint = next((name for name in CONSTRAINTS if getattr(sampling, name) is not None), None)
        if constraint is not None:
            self.check_constraint(constraint)
        penalties = {
            "presence_penalty": sampling.presence_penalty != 0,
            "frequency_penalty": sampling.frequency_penalty != 0,
            "repetition_penalty": sampling.repetition_penalty != 1,
        }
        for param, is_given in penalties.items():
            if is_given:
                raise self._not_of_blocks(param, "which draws several tokens at once")
        for param in ("logprobs", "prompt_logprobs"):
            if getattr(sampling, param) is not None:
                raise self._not_of_blocks(param, "whose tokens do not follow from those before them alone")

    def _not_of_blocks(self, param: str, why: str) -> LimitError:
        return LimitError(
            f"{param} is not supported by this model of block diffusion, {why}; leave it out",
            param=param,
            code="unsupported",
        )

    def check_priority(self, priority: int, priority_class: str = "") -> None:
        """Check a request's priority.

        Args:
            priority_class: name of its class; "": it names none.

        Raises:
            LimitError: it is no 64-bit integer, or is not 0 where requests are not ordered by priority; a class where
                they are not ordered by deadline.
        """
        if priority_class and not self.classes:
            raise LimitError(
                f"priority {priority_class!r} needs an engine that orders by deadline (--schedule-policy deadline);"
                " leave it out",
                param="priority",
            )
        low, high = PRIORITIES
        if not isinstance(priority, int) or isinstance(priority, bool) or not low <= priority <= high:
            raise LimitError(f"priority must be an integer of at most 64 bits, got {priority!r}", param="priority")
        if priority and self.classes:
            raise LimitError(
                f"priority {priority} needs an engine that orders by priority (--schedule-policy priority);"
                f" this one takes {', '.join(CLASS_NAMES)}",
                param="priority",
            )
        if priority and not self.knows_priority:
            raise LimitError(
                f"priority {priority} needs an engine that orders by priority (--schedule-policy priority);"
                " leave it out, or send 0",
                param="priority",
            )

    def class_of(self, name: str) -> str:
        """Return the class of a request that names one, or none (""): "" where there are no classes."""
        return (name or DEFAULT_CLASS) if self.classes else name

    def check_itl_target(self, micros: int) -> None:
        """Check a request's own ITL target, in microseconds; 0: it has none.

        Raises:
            LimitError: the engine has none, or a longer one.
        """
        if micros and not self.itl_target:
            raise LimitError(
                f"itl_target {micros / 1e6:g} needs an engine with a target (--itl-target); leave it out",
                param="itl_target",
            )
        if 0 < micros < self.itl_target:
            raise LimitError(
                f"itl_target {micros / 1e6:g} is below the engine's target; at least"
                f" {self.itl_target / 1e6:g} seconds are accepted",
                param="itl_target",
            )

    def _check_ids(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise LimitError("the prompt is empty; it needs at least one token", param="prompt")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self.vocab_size:
                raise LimitError(
                    f"token id {token} in the prompt is outside the vocabulary: ids are 0 to {self.vocab_size - 1}",
                    param="prompt",
                )
        if not self.media_token_ids.isdisjoint(prompt):
            token = next(token for token in prompt if token in self.media_token_ids)
            raise LimitError(
                f"token id {token} in the prompt stands for an image or for sound, which this engine does not take",
                param="prompt",
                code="unsupported",
            )

    def _too_long(self, what: str, length: int, param: str) -> LimitError:
        """Return the error of a request of `length` tokens, prompt and output together."""
        if length > self.max_model_len:
            limit = f"the model's context is {self.max_model_len} tokens"
        elif self.disabled_tier is not None:
            pool = f"the KV pool is {self.max_total_tokens} tokens (--max-total-tokens)"
            return TierDisabled(
                f"{what}, but {pool}, and {why_none_longer(self.disabled_tier)}", param=param, code=NO_TIER
            )
        elif self.max_offloaded_tokens > self.max_total_tokens:
            limit = (
                f"the tier behind the KV pool has {self.max_offloaded_tokens * self.token_bytes} bytes for"
                f" {self.max_offloaded_tokens} tokens, and these need {length * self.token_bytes}"
                " (--kv-disk-bytes, --kv-host-bytes)"
            )
        else:
            limit = f"the KV pool is {self.max_total_tokens} tokens (--max-total-tokens){self._larger(length)}"
        return LimitError(f"{what}, but {limit}", param=param, code="context_length_exceeded")

    def _larger(self, length: int) -> str:
        """Return which options would serve a request of `length` tokens, if there are any."""
        if self.block_size or not self.token_bytes:
            return ""
        return (
            f"; a tier behind it serves longer contexts: these need at least {length * self.token_bytes} bytes there"
            " (--kv-disk and --kv-disk-bytes, or --kv-host-bytes)"
        )


def split_priority(priority: Priority) -> tuple[int, str]:
    """Return a priority as a number and the name of a class, of which one says nothing.

    Raises:
        LimitError: no class has the name.
    """
    if not isinstance(priority, str):
        return priority, ""
    if priority not in CLASS_NAMES:
        raise LimitError(
            f"priority must be an integer, or one of {', '.join(CLASS_NAMES)}, got {shown(priority)}", param="priority"
        )
    return 0, priority


def check_stops(stops: Sequence[str]) -> None:
    """Check the stop strings of a request to a server.

    Raises:
        LimitError: there are more than `MAX_STOPS`, or one is longer than `MAX_STOP_LENGTH` characters.
    """
    longest = max(map(len, stops), default=0)
    if len(stops) > MAX_STOPS or longest > MAX_STOP_LENGTH:
        raise LimitError(
            f"stop may hold at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH} characters, got {len(stops)}"
            f" of at most {longest}",
            param="stop",
        )


def check_cache_salt(salt: str) -> None:
    """Check the name of a part of the prefix cache.

    Raises:
        LimitError: it is no text, empty, longer than `MAX_CACHE_SALT` characters, no valid Unicode, or begins with
            what marks the parts of adapters.
    """
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_CACHE_SALT:
        got = f"{len(salt)} characters" if isinstance(salt, str) else repr(salt)
        raise LimitError(
            f"cache_salt must be a text of 1 to {MAX_CACHE_SALT} characters, got {got}", param="cache_salt"
        )
    if salt.startswith(ADAPTER_MARK):
        raise LimitError(f"cache_salt must not begin with U+0000, got {salt!r}", param="cache_salt")
    try:
        salt.encode()
    except UnicodeEncodeError as error:
        raise LimitError(
            f"cache_salt must be valid Unicode, got an unpaired surrogate at {error.start}", param="cache_salt"
        ) from error
