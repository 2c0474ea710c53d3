"""The result of a step, and the outputs that clients receive of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sluice.types.adapters import AdapterUse
from sluice.types.tiers import CopyDone, TierUse


class FinishReason(StrEnum):
    """Why a request ended. STOP and LENGTH carry OpenAI's names; every other one is a failure."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    OVERLOAD = "overload"
    """Refused: too much waits already."""
    EXPIRED = "expired"
    """Dropped: it had not begun at its start deadline."""
    TIMEOUT = "timeout"
    """Ended at its deadline."""
    TIER_UNAVAILABLE = "tier_unavailable"
    """Refused or ended: the tier that holds its context is disabled, or has failed."""

    @property
    def is_failure(self) -> bool:
        return self not in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def is_error(self) -> bool:
        """Whether the request itself failed, and its KV may be the cause."""
        return self in (FinishReason.ERROR, FinishReason.TIER_UNAVAILABLE)


class RowError(NamedTuple):
    """A row that failed (with NaN logits, say): its request ends, the others continue. `row` indexes `plan.chunks`."""

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
    """(token id, log-probability) of the most likely tokens, best first: as many as requested, or the whole of a
    smaller vocabulary."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a step: per *sampling* chunk, in plan order, the tokens that it brought.

    These are the one that was sampled, and those that a grammar forces behind it. A row may bring none: if it is named
    in `errors`, its request ends; if in `complete`, too; else its last token is computed once more, or its open block.
    A row with an open block brings the tokens of all its masked positions at once. A row named in `errors` still has
    its entry (empty) wherever it would have one.
    """

    step: int
    token_ids: tuple[tuple[int, ...], ...]
    errors: tuple[RowError, ...] = ()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """Like `token_ids`; an entry is empty if its request did not ask, and all are left out if none did."""
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """An entry for each chunk with targets, in plan order: log-probabilities for each target."""
    embeddings: tuple[bytes, ...] = ()
    """An entry for each chunk that embeds, in plan order (`Output.embedding`)."""
    copies: tuple[CopyDone, ...] = ()
    """How the plan's copies between device and host ended. Copies with the disk end at any time later, and
    `engine.messages.Copied` reports them."""
    slice_errors: tuple[RowError, ...] = ()
    """Slices that failed: `row` indexes `plan.slices`."""
    complete: tuple[int, ...] = ()
    """Rows, as indices of `plan.chunks`, whose grammar allows nothing more: their requests end with these tokens."""
    accepted: tuple[int, ...] = ()
    """Like `token_ids`: how many drafts of the chunk are the tokens that were sampled in their places. They are the
    first tokens that the row brings, and at most all but its last one. Left out if no chunk has drafts."""
    stage_micros: tuple[int, ...] = ()
    """Microseconds that each stage of a pipeline computed for the step, from the first stage on. Empty without one."""


class CachedTokens(NamedTuple):
    """Prompt tokens found in the cache, and how many of them were loaded from lower tiers."""

    total: int = 0
    host: int = 0
    disk: int = 0

    @property
    def device(self) -> int:
        return self.total - self.host - self.disk


class Drafted(NamedTuple):
    """Tokens that were guessed for a request."""

    tokens: int = 0
    accepted: int = 0
    """Drafts that were right, and so are among the outputs."""


class Output(NamedTuple):
    """Tokens of a request that one commit produced, or its embedding.

    The output with a `finish_reason` is the request's last.

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
    """Cached tokens that were loaded from the host."""
    num_disk_tokens: int = 0
    """Cached tokens that were loaded from the disk."""
    embedding: bytes = b""
    """Embedding, if the request asks for one: the hidden state of its last token after the final norm, [hidden_size]
    little-endian float32, not normalised."""
    num_drafted: int = 0
    """Drafts of the row that brought these tokens."""
    num_accepted: int = 0
    """Drafts among them that were accepted."""
    num_passes: int = 0
    """Passes that filled in the block which these tokens are of, if the model fills in blocks."""

    @property
    def drafted(self) -> Drafted:
        return Drafted(self.num_drafted, self.num_accepted)

    @property
    def cached(self) -> CachedTokens:
        """The cached tokens, by tier."""
        return CachedTokens(self.num_cached_tokens, self.num_host_tokens, self.num_disk_tokens)


class Occupancy(NamedTuple):
    """How full a scheduler is."""

    running: int
    """Requests on the device, half-computed prompts included."""
    waiting: int
    free_pages: int
    """Empty pages."""
    cached_pages: int
    """Pages of cached prefixes that no request uses at the moment; they can be evicted."""
    total_pages: int
    partial: int = 0
    """Running requests whose prompt is not completely planned."""
    preemptions: int = 0
    """Preemptions since the scheduler was made."""
    loading: int = 0
    """Requests whose prefix is being loaded to the device."""
    tiers: tuple[TierUse, ...] = ()
    """The tiers behind the device, fastest first."""
    compiling: int = 0
    """Requests whose grammar is being compiled."""
    held: int = 0
    """Requests whose adapter is not loaded."""
    adapters: tuple[AdapterUse, ...] = ()
    """Adapters that are loaded, or waited for."""
    records: int = 0
    """Records of recurrent states that the device holds, of a model that has such states."""
    used_records: int = 0
    window_pages: int = 0
    """Pages of layers with a window; 0: all layers have the same pages."""
    used_window_pages: int = 0
    """Those of them that running requests hold. Others are free, or of cached prefixes."""
    """Those that a cached prefix has, or that are being made."""
