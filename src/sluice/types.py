"""The vocabulary: what passes between the scheduler, the engine and the runner.

A request is two counters and a step closes the gap between them. A step is one immutable `BatchPlan`, and what comes
back is one `BatchResult`. Everything here is plain data: no tensor, no clock, no text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple


class FinishReason(StrEnum):
    """Why a request ended. STOP and LENGTH carry OpenAI's names; every other one is a failure."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    OVERLOAD = "overload"
    """It was never taken: too much waits already."""
    EXPIRED = "expired"
    """It had not begun when it was to have begun."""
    TIMEOUT = "timeout"
    """It had not ended when it was to have ended."""

    @property
    def is_failure(self) -> bool:
        return self not in (FinishReason.STOP, FinishReason.LENGTH)


MAX_TOP_K = 1 << 30
MAX_LOGPROBS = 20
"""Most alternatives told for one token."""
MAX_SAMPLES = 128
"""Most samples of one prompt."""
MAX_TOKEN_ID = (1 << 31) - 1
MAX_BIAS = 100
"""Largest `logit_bias`, up or down: it decides on its own."""
MAX_PENALTY = 2
"""Largest presence or frequency penalty, up or down."""
REPETITION_PENALTIES = (0.01, 100)
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)


def _require(ok: bool, name: str, value: object, accepted: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {accepted}, got {value!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_ID


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    """What `logit_bias` is given as."""
    try:
        return tuple((token, value) for token, value in (bias.items() if isinstance(bias, Mapping) else bias))
    except (TypeError, ValueError) as error:
        raise ValueError(f"logit_bias must be numbers by token id, got {bias!r}") from error


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request wants its tokens. Field names are those of the HTTP API.

    `max_tokens=None` means as many as the context allows. `top_k` 0 or -1 is off. `temperature=0` is greedy.
    `stop` (strings) is matched against text by whoever detokenizes; the engine only sees `stop_token_ids`.
    `n` samples are drawn of each prompt; they differ by their number alone, so with temperature 0 they are equal.
    `logprobs` asks for the log-probability of each output token and of that many of the most likely ones beside it
    (0: its own alone, None: nothing); `prompt_logprobs` for the same of the prompt's tokens from the second on, and
    then no prefix is taken from the cache. See `TokenLogprobs`.

    What changes logits before anything else, in this order: `logit_bias` is added, by token id; `repetition_penalty`
    divides positive logits, and multiplies the others, of tokens in the prompt or the output (Keskar et al., "CTRL",
    2019); `frequency_penalty` is taken off for each time a token was generated, and `presence_penalty` once if it was
    (OpenAI's); stop tokens cannot come before `min_tokens` are there, and stop strings are not looked for in these.

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
    n: int = 1
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit); a mapping is taken too."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        max_tokens, seed = self.max_tokens, self.seed
        _require(
            max_tokens is None or (_is_int(max_tokens) and max_tokens >= 1),
            "max_tokens",
            max_tokens,
            "an integer of at least 1",
        )
        _require(
            _is_number(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "a finite number of at least 0",
        )
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(
            _is_int(self.top_k) and -1 <= self.top_k <= MAX_TOP_K,
            "top_k",
            self.top_k,
            "an integer of at least 1, or 0 or -1 for off",
        )
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _require(
            seed is None or (_is_int(seed) and SEED_RANGE[0] <= seed <= SEED_RANGE[1]),
            "seed",
            seed,
            "an integer of at most 64 bits",
        )
        _require(
            all(isinstance(text, str) and text for text in self.stop),
            "stop",
            self.stop,
            "a non-empty string or a list of them",
        )
        _require(
            all(_is_token_id(token) for token in self.stop_token_ids),
            "stop_token_ids",
            self.stop_token_ids,
            "a list of token ids",
        )
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "true or false")
        _require(_is_int(self.n) and 1 <= self.n <= MAX_SAMPLES, "n", self.n, f"an integer from 1 to {MAX_SAMPLES}")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(
                count is None or (_is_int(count) and 0 <= count <= MAX_LOGPROBS),
                name,
                count,
                f"an integer from 0 to {MAX_LOGPROBS}",
            )
        self._check_adjustments()

    def _check_adjustments(self) -> None:
        """What changes logits."""
        accepted = "an integer of at least 0" + ("" if self.max_tokens is None else f" and at most {self.max_tokens}")
        most = math.inf if self.max_tokens is None else self.max_tokens
        _require(_is_int(self.min_tokens) and 0 <= self.min_tokens <= most, "min_tokens", self.min_tokens, accepted)
        for name, penalty in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _require(
                _is_number(penalty) and abs(penalty) <= MAX_PENALTY,
                name,
                penalty,
                f"a number from -{MAX_PENALTY} to {MAX_PENALTY}",
            )
        low, high = REPETITION_PENALTIES
        penalty = self.repetition_penalty
        _require(_is_number(penalty) and low <= penalty <= high, "repetition_penalty", penalty, f"in [{low}, {high}]")
        for token, bias in self.logit_bias:
            _require(_is_token_id(token), "logit_bias", token, "by token id")
            _require(
                _is_number(bias) and abs(bias) <= MAX_BIAS,
                "logit_bias",
                {token: bias},
                f"a number from -{MAX_BIAS} to {MAX_BIAS} for each token",
            )
        ids = {token for token, _ in self.logit_bias}
        _require(len(ids) == len(self.logit_bias), "logit_bias", self.logit_bias, "one number for each token")

    @property
    def has_penalties(self) -> bool:
        """The logits depend on the tokens before."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    def of_sample(self, index: int) -> SamplingParams:
        """What one of several samples of a prompt asks for: the prompt's logprobs are the first one's to tell."""
        return self if index == 0 or self.prompt_logprobs is None else replace(self, prompt_logprobs=None)

    def resolved(self, *, eos_ids: Iterable[int], room: int, seed: int) -> SamplingParams:
        """What the engine gets, once for each of the `n` samples: nothing left open, no text.

        `room` is the number of tokens the context still holds and fills an open `max_tokens`; `seed` fills an open
        seed; the end-of-sequence ids become stop ids unless `ignore_eos`.
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
        )


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the scheduler is told: the resolved form of `config.SchedulerConfig`, where each is described.

    `chunked_prefill_size=0` means prompts are never cut; 0 for `max_prefill_tokens`, `long_prefill_token_threshold`,
    `max_prefill_requests`, `max_queued_requests` and `max_queued_tokens` means no such limit.
    `max_running_requests < max_batch_tokens`, so decodes alone never fill a step. `dynamic_chunking` is the position at
    which a prompt token takes twice as long as the first one; 0: all count the same.
    """

    schedule: str
    chunked_prefill_size: int
    max_batch_tokens: int
    max_running_requests: int
    lookahead: int = 0
    max_prefill_tokens: int = 0
    long_prefill_token_threshold: int = 0
    max_prefill_requests: int = 0
    max_partial_prefills: int = 1
    reserve: str = "ratio"
    conservativeness: float = 1.0
    policy: str = "fcfs"
    low_priority_values_first: bool = False
    priority_preemption: bool = False
    max_queued_requests: int = 0
    max_queued_tokens: int = 0
    dynamic_chunking: int = 0


class Bound(StrEnum):
    """The limit that kept a step from holding more: the first one that cut or refused something."""

    NOTHING = "nothing"
    MAX_BATCH_TOKENS = "max_batch_tokens"
    CHUNKED_PREFILL_SIZE = "chunked_prefill_size"
    MAX_PREFILL_TOKENS = "max_prefill_tokens"
    LONG_PREFILL_TOKEN_THRESHOLD = "long_prefill_token_threshold"
    MAX_PREFILL_REQUESTS = "max_prefill_requests"
    MAX_PARTIAL_PREFILLS = "max_partial_prefills"
    MAX_RUNNING_REQUESTS = "max_running_requests"
    KV_PAGES = "kv_pages"
    PREFILL_FIRST = "prefill_first"
    TIER_PAGES = "tier_pages"
    """A context longer than the device waits for room on its tier."""


class Chunk(NamedTuple):
    """`length` consecutive tokens of one request from position `start`; a decode is a chunk of length 1.

    A NamedTuple and not a dataclass: one is made per request per step, and it is the cheaper of the two immutables.
    """

    request_id: int
    slot: int
    start: int
    length: int
    token_ids: tuple[int, ...]
    """The input ids. One short of `length`: the last input is what this slot sampled last (still on the device)."""
    new_pages: tuple[int, ...]
    """Appended to the slot's page-table row before the forward."""
    samples: bool
    """The chunk reaches the end of what is known: sample the token at position `start + length` after it."""
    targets: tuple[int, ...] = ()
    """The tokens at `start + 1` and on: those of the prompt whose log-probability this chunk is to give."""

    @property
    def end(self) -> int:
        return self.start + self.length


class Tier(StrEnum):
    """Where a page of KV may lie, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class TierLimits:
    """How many pages lie behind the device, and how they get there. No pages: no such tier."""

    host_pages: int = 0
    disk_pages: int = 0
    write_policy: str = "write-through"
    """write-through: a page is stored when it is published; write-back: when it is evicted from the tier above;
    selective: when it is used again."""
    copies_per_step: int = 64
    """Most pages that one plan copies: the byte budget of a step, in pages."""
    copies_in_flight: int = 256
    """Most copies that were planned and have not ended."""
    load_back_pages: int = 1
    """Fewer pages than this are computed again rather than loaded."""

    def pages_on(self, tier: Tier) -> int:
        """Of a tier behind the device."""
        return self.host_pages if tier is Tier.HOST else self.disk_pages


class PageKey(NamedTuple):
    """What a page holds, in words that outlive the process: an index of these restores the prefix tree.

    `digest` is a function of `extra_key` and of all tokens from the beginning to the page's end, `parent` the digest of
    the page before it, empty if there is none.
    """

    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    """The page's own: as many as a page holds."""
    extra_key: str


class PageCopy(NamedTuple):
    """One page of KV, all layers, from one tier to another: a *load* if to the device, else a *store*.

    Pages of HOST and DISK are numbered from 0 like those of the device. The source of a store is read in plan order: it
    may be overwritten by what follows in the plan. The target of a load is read and written by nobody before its
    `CopyDone` came back, nor is the source of a load overwritten before.
    """

    ticket: int
    """Names the copy; never used twice."""
    source: Tier
    source_page: int
    target: Tier
    target_page: int
    checksum: int = 0
    """Of a load: what the store of that page came back with. Bytes with another one are a failed copy."""
    key: PageKey | None = None
    """Of a store to DISK."""


class CopyDone(NamedTuple):
    """How a copy ended. One that failed has an `error`; what its target holds then is anything."""

    ticket: int
    checksum: int = 0
    """Of a store: of the bytes that were stored."""
    error: str | None = None


class StoredPage(NamedTuple):
    """A page that a disk tier held when it was opened."""

    page: int
    key: PageKey
    checksum: int


@dataclass(frozen=True, slots=True)
class OffloadLimits:
    """How requests are served whose context is longer than the device: *offloaded* requests.

    Their KV lies on a lower tier, and a chunk of theirs is work in units: in each layer one for every group of blocks
    of the ring, and one for what is on the device. Costs are in tokens, those of the step's budget: what a unit costs
    is what as many ordinary tokens would.
    """

    above: int
    """Requests of more tokens than this, prompt and output, are offloaded."""
    tier: Tier
    page_bytes: int
    """Of a page on the tier."""
    chunk_tokens: int
    """Most tokens of a chunk, a multiple of the page size."""
    window_pages: int
    """Pages on the device that a offloaded request holds: more than a chunk fills."""
    num_layers: int
    block_pages: int
    """Pages of a slot of the ring."""
    group_blocks: int
    """Blocks attended to at once."""
    decode_blocks: int = 0
    """Most blocks that a decoded token attends to; 0: all."""
    prefill_blocks: int = 0
    """The same for chunks of prompts."""
    pair_cost: float = 0.0
    """Of a query and a key in one layer."""
    load_cost: float = 0.0
    """Of bringing the KV of one token in one layer to the device, beside the computation."""
    may_be_late: bool = False
    """Loads may take longer than planned, as a disk's do: then units may be left undone
    (`BatchResult.unfinished`). The last unit of a chunk, which loads nothing, is planned once all others are done."""

    def groups(self, base_pages: int, *, is_decode: bool) -> int:
        """Groups of blocks in each layer, for a chunk behind so many pages on the tier."""
        blocks = -(-base_pages // self.block_pages)
        most = self.decode_blocks if is_decode else self.prefill_blocks
        return -(-(min(blocks, most) if most else blocks) // self.group_blocks)

    def cost_of_group(self, length: int, page_size: int) -> float:
        """Tokens that attending to one group costs a chunk of `length` tokens: loads run beside the computation."""
        keys = self.group_blocks * self.block_pages * page_size
        return keys * max(length * self.pair_cost, self.load_cost)

    def cost_of_rest(self, length: int) -> float:
        """Tokens that the rest of a layer costs."""
        return length / self.num_layers


class ChunkSlice(NamedTuple):
    """Part of the work of one chunk of a request whose context is longer than the device.

    The request's first `base` tokens have their KV on a lower tier and are attended to there, through a ring; what
    follows them, up to the chunk's end, is on the device. A chunk is `total` units of work, done in order, in one step
    or over several: in each layer one for every group of blocks of the ring, and one for the tokens on the device.
    """

    chunk: Chunk
    """Among the plan's chunks in the step that completes it. Its `new_pages` are empty."""
    stored_pages: tuple[int, ...]
    """Numbers on the tier, appended to those of the slot: with them they hold `base` tokens."""
    base: int
    """A multiple of the page size."""
    pages: tuple[int, ...]
    """Pages on the device that hold the tokens from `base` on, in order."""
    first: int
    """The first unit of this step, besides those that are owed."""
    stop: int
    """The unit behind the last one of this step; `first`, if the step only does what is owed."""
    total: int
    is_decode: bool = False
    """The chunk is a token that was generated, and not the last one of a prompt that came alone: what it attends to may
    be chosen."""

    @property
    def completes(self) -> bool:
        return self.stop == self.total


class NewSlot(NamedTuple):
    """What a newly filled slot needs. It empties the slot's page-table row; the first chunk brings the pages.

    `sampling` is resolved: `seed` and `max_tokens` are set. Randomness is keyed by
    (`sampling.seed`, `sample_index`, position of the token being sampled), never by slot, step or request id.
    """

    slot: int
    request_id: int
    sampling: SamplingParams
    sample_index: int
    prompt_len: int = 0
    """Tokens of the prompt: those behind them are outputs."""
    history: tuple[int, ...] = ()
    """All tokens known, if the sampling has penalties: those of a cached prefix come in no chunk."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step. Decodes come first in `chunks`; result rows follow the order of the chunks that sample."""

    step: int
    new_slots: tuple[NewSlot, ...]
    chunks: tuple[Chunk, ...]
    bound_by: Bound = Bound.NOTHING
    num_decodes: int = 0
    """How many of the chunks, the first ones, are decodes."""
    copies: tuple[PageCopy, ...] = ()
    """In order, before the chunks. A plan may hold copies alone."""
    dropped: tuple[int, ...] = ()
    """Pages of the disk tier that are to be forgotten, before the copies: no restart may bring them back."""
    slices: tuple[ChunkSlice, ...] = ()
    """Work on offloaded chunks. Those that it completes are the last of `chunks`, in the same order."""

    @property
    def num_decoded(self) -> int:
        """Chunks that are decodes, offloaded ones included, which are not among the first."""
        return self.num_decodes + sum(part.completes and part.is_decode for part in self.slices)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


class TierUse(NamedTuple):
    """How full a tier behind the device is, and what went there and came back, in pages since the engine began."""

    tier: Tier
    total: int
    used: int
    stored: int = 0
    failed_stores: int = 0
    loaded: int = 0
    failed_loads: int = 0
    """That could not be read, or were not what was stored: they were computed again."""
    lost: int = 0
    """That left the cache altogether, on the first tier or for want of it."""


class Occupancy(NamedTuple):
    """How full a scheduler is."""

    running: int
    """Requests on the device, half-computed prompts included."""
    waiting: int
    free_pages: int
    """Pages that hold nothing."""
    cached_pages: int
    """Pages that hold a cached prefix which nobody uses at the moment: they can be had as well."""
    total_pages: int
    partial: int = 0
    """Of those that run, how many have a prompt that is not all planned."""
    preemptions: int = 0
    """How often a running request was sent back to wait, since the scheduler was made."""
    loading: int = 0
    """Requests whose prefix is on its way to the device."""
    tiers: tuple[TierUse, ...] = ()
    """Those behind the device, fastest first."""


class RowError(NamedTuple):
    """One row failed (NaN logits, say): its request ends, the others go on. `row` indexes `plan.chunks`."""

    row: int
    message: str


class TokenLogprobs(NamedTuple):
    """How likely one token was, and which tokens were most likely in its place.

    A log-probability is the log-softmax of the model's raw logits, before temperature, filters and noise (vLLM's
    default too), in float32, or float64 for a model in float64. A probability of zero is -inf.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the most likely tokens, best first: as many as were asked for, or the whole of a
    smaller vocabulary."""


class PlanError(ValueError):
    """A plan does not fit the state of the device or the tiers. No part of it was executed."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a step gave: per *sampling* chunk, in plan order, the sampled tokens (one, unless speculating).

    A row named in `errors` still has its entry (empty) wherever it would have one.
    """

    step: int
    token_ids: tuple[tuple[int, ...], ...]
    errors: tuple[RowError, ...] = ()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """Like `token_ids`, an entry empty whose request did not ask; left out if none did."""
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """Per chunk with targets, in plan order: one for each target."""
    copies: tuple[CopyDone, ...] = ()
    """How the plan's copies between device and host ended. Those with the disk end whenever they do, and are told of by
    `engine.messages.Copied`."""
    slice_errors: tuple[RowError, ...] = ()
    """Offloaded work that failed: `row` indexes `plan.slices`."""
    unfinished: int = 0
    """Units of the offloaded chunk, planned in this step or before, that are not done: what they read had not come. The
    chunk's next part begins with them."""


class CachedTokens(NamedTuple):
    """Prompt tokens that were found in the cache, and of these the ones that were not on the device."""

    total: int = 0
    host: int = 0
    disk: int = 0

    @property
    def device(self) -> int:
        return self.total - self.host - self.disk


class Output(NamedTuple):
    """What one commit tells the owner of a request. The one with a `finish_reason` is the last.

    `start` is the number of output tokens before these, so a reader can drop what it has seen. Log-probabilities come
    if asked for: `logprobs` one for each of `token_ids`; `prompt_logprobs` in the prompt's order from its second token
    on, each once, a chunk at a time, all of them before or with the first output token.
    """

    request_id: int
    start: int
    token_ids: tuple[int, ...]
    num_cached_tokens: int
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_host_tokens: int = 0
    """Of the cached tokens, those that had to be loaded from the host,"""
    num_disk_tokens: int = 0
    """and from the disk."""

    @property
    def cached(self) -> CachedTokens:
        """Where the cached tokens lay."""
        return CachedTokens(self.num_cached_tokens, self.num_host_tokens, self.num_disk_tokens)
