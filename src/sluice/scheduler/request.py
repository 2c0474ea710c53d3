"""Request: one generation or embedding as the scheduler sees it, with its counters, its pages and its status."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from enum import Enum

from sluice.kv.manager import Lease
from sluice.kv.nodes import Node
from sluice.types import Chunk, FinishReason, SchedulerLimits, Submit

COMPARED = 1024
"""Tokens of two requests that are compared at once."""


class Status(Enum):
    """Where a request is; it has exactly one status at any time."""

    COMPILING = "compiling"
    HELD = "held"
    WAITING = "waiting"
    LOADING = "loading"
    PARTIAL = "partial"
    DECODING = "decoding"
    FORCED = "forced"
    OFFLOADED = "offloaded"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True)
class SlicedChunk:
    """A resident chunk whose layers are divided among steps, and are not all planned."""

    chunk: Chunk
    planned: int = 0
    """Layers that were planned, from the first one on."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation or embedding, as the scheduler sees it.

    Only `add`, `abort`, `schedule`, `commit`, `fail` and reports change it.

        0 ........ cached ........ computed ........ scheduled ........ len(tokens) + pending
        found in   known done      promised to the   all there is to compute
        the cache                  device

    `tokens` holds what the host knows (prompt, then outputs); `pending` counts those that rows in flight
    are to bring.
    """

    submit: Submit
    """The request as it came, without its prompt and outputs: `tokens` holds these."""
    lookahead: int = 0
    """Samples that may be unread when the next token is planned: at most as many as the scheduler allows."""
    block_size: int = 0
    """Tokens of a block, if the model fills in blocks. All chunks are whole blocks then, and what is known of the open
    block is computed again in each pass over it."""

    id: int = field(init=False)
    prompt_len: int = field(init=False)
    tokens: array[int] = field(init=False)
    extra_key: str = field(init=False)
    """Its namespace of the prefix cache."""
    priority: int = field(init=False)
    itl_target: int = field(init=False)
    """ITL target in microseconds; 0: the scheduler's."""
    level: int = 0
    """Position of its priority class among those of the scheduler."""
    ttft_deadline: int = 0
    """When its first token is due, in microseconds of the clock of `Submit.arrived`. It counts under the policy
    `deadline`."""
    turn: int | None = None
    """Its place among the requests that wait, given when it is first queued (`queue.CallTurns`)."""
    embeds: bool = field(init=False)
    max_tokens: int = field(init=False)
    """Most tokens that are generated; 0 if it embeds."""
    stop_ids: frozenset[int] = field(init=False)
    status: Status = Status.WAITING
    slot: int = -1
    lease: Lease | None = None
    """The pages that it holds while it has a slot."""
    cached: int = 0
    computed: int = 0
    scheduled: int = 0
    pending: int = 0
    in_flight: int = 0
    """Plans launched and not committed that hold a row of this request."""
    drafts: int = 0
    """Drafts of its row in flight, or masked positions, behind `scheduled`. Nothing is planned before they are accepted
    or not."""
    num_drafted: int = 0
    """Drafts of all its rows that were committed. Only a law reads it: such a request may hold the page of its next
    token."""
    num_passes: int = 0
    """Passes over its open block that were committed."""
    anchor: int = 0
    """Of a model with recurrent states: the tokens behind which its state will be when all that is planned was
    computed."""
    record_at: tuple[int, ...] = ()
    """Places at which records of its state are made, when its anchor passes them."""
    records: list[tuple[int, int]] = field(default_factory=list)
    """(place, record) of those that were planned and that no node has yet."""
    sliced: SlicedChunk | None = None
    """The chunk behind `scheduled` of which some layers were planned; nothing else of the request is before it is
    complete."""
    is_drafting: bool = False
    """A row in flight was planned when drafts were wanted for it, whether there were any or not."""
    prefill_end: int = 0
    """Tokens known at admission. A chunk before it is prefill: of the prompt, or of what is computed again after a
    preemption."""
    num_targets: int = field(init=False)
    """Prompt tokens whose log-probability is wanted: none, or all but the first."""
    prompt_logprobs_sent: int = field(init=False)
    """Log-probabilities of the prompt that were sent, in order. They are not sent again when the request is computed
    again."""
    num_cached_tokens: int = -1
    """Prompt tokens found in the cache at the first admission, -1 before it."""
    num_host_tokens: int = 0
    """Tokens among these that came from the host tier."""
    num_disk_tokens: int = 0
    """Tokens among these that came from the disk tier."""
    preemptions: int = 0
    """Times it was preempted for want of memory."""
    furthest: int = 0
    """Tokens that were computed when a page of it was lost, at most."""
    num_losses: int = 0
    """Pages that were lost since it got so far."""
    priority_preemptions: int = 0
    """Times it was preempted for a request of a higher priority."""
    waits_since: int = 0
    """Step at which it last joined the waiting queue."""
    planned_at: int = 0
    """Step of its latest chunk, or of its admission."""
    uncached: int = 0
    """Tokens not found in the cache when they were last counted. They are counted only with --max-queued-tokens."""
    path: list[Node] = field(default_factory=list)
    """Cached pages found for it so far, while it waits. They are not held, and may be gone."""
    usable: int = 0
    """Nodes of the path behind which it could go on, when they were last counted."""
    usable_name: tuple[int, int, Node | None] | None = None
    """What was counted then (`prefix_match.usable_name`). None: nothing."""
    alike: tuple[Request, int] | None = field(default=None, repr=False)
    """The request that it was last found to begin like, while it waits, and how many tokens they have in common at
    least."""
    found: list[Node] = field(default_factory=list)
    """The path and the nodes behind it on any tier, while it waits and if its cached length on all tiers is asked for.
    As the path, it may be out of date."""
    finish_reason: FinishReason | None = None
    """Set when the end is decided; the request may still drain. None while DRAINING: it was preempted and will wait
    again."""

    def __post_init__(self) -> None:
        submit, sampling = self.submit, self.submit.sampling
        assert sampling.max_tokens is not None and sampling.seed is not None, sampling
        self.id, self.extra_key, self.priority = submit.request_id, submit.namespace, submit.priority
        self.itl_target = submit.itl_target
        self.tokens = submit.tokens()
        self.prompt_len = len(self.tokens)
        self.tokens.extend(submit.output_ids)
        self.submit = replace(submit, prompt=(), packed=b"", output_ids=())
        wanted = 0 if submit.grammar or self.block_size else submit.lookahead
        self.lookahead = self.lookahead if wanted is None else min(self.lookahead, wanted)
        self.embeds = submit.embeds
        self.max_tokens = 0 if submit.embeds else sampling.max_tokens
        self.stop_ids = frozenset(sampling.stop_token_ids)
        self.num_targets = 0 if submit.embeds or sampling.prompt_logprobs is None else self.prompt_len - 1
        self.prompt_logprobs_sent = submit.prompt_logprobs_sent

    def join_class(self, limits: SchedulerLimits) -> None:
        """Set what follows from the priority class of a new request. Its own ITL target goes before that of the class.

        Raises:
            ValueError: there is no such class.
        """
        if limits.classes:
            self.level = limits.level(self.submit.priority_class)
            its_class = limits.classes[self.level]
            self.ttft_deadline = self.submit.arrived + its_class.ttft_target
            self.itl_target = self.itl_target or its_class.itl_target

    @property
    def has_begun(self) -> bool:
        """Whether it was admitted at least once, by this engine or by one before."""
        return self.num_cached_tokens >= 0 or self.num_outputs > 0

    @property
    def num_outputs(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def cacheable(self) -> int:
        """Most tokens that may come from the cache. At least one is left to compute, since its logits are needed, and
        so is each token whose successor's log-probability is still to be sent."""
        return len(self.tokens) - 1 if self.prompt_logprobs_sent == self.num_targets else self.prompt_logprobs_sent

    def begins_like(self, other: Request, length: int) -> bool:
        """Return whether the first `length` tokens are those of another request of the same namespace. Long prompts are
        compared once, and from the end, where most of them differ."""
        if length > min(len(self.tokens), len(other.tokens)) or self.extra_key != other.extra_key:
            return False
        same = self.alike[1] if self.alike is not None and self.alike[0] is other else 0
        for end in range(length, same, -COMPARED):
            start = max(same, end - COMPARED)
            if self.tokens[start:end] != other.tokens[start:end]:
                return False
        self.alike = (other, max(same, length))
        return True

    def targets(self, start: int, end: int) -> tuple[int, ...]:
        """Return the prompt tokens that a chunk from `start` to `end` scores: none if all of theirs were sent."""
        last = min(end, self.num_targets)
        return tuple(self.tokens[start + 1 : last + 1]) if self.prompt_logprobs_sent < last else ()

    @property
    def was_running(self) -> bool:
        """Whether it ran before: it was preempted, or an engine before this one began it."""
        return self.preemptions > 0 or self.priority_preemptions > 0 or self.num_outputs > 0

    @property
    def is_prefilling(self) -> bool:
        """Whether some of the tokens known at admission are not computed yet, though all may be planned."""
        return self.computed < self.prefill_end

    @property
    def has_more(self) -> bool:
        """Whether there is more to generate than is on its way, or to embed than is planned."""
        return self.extend_len > 0 if self.embeds else self.num_outputs + self.pending < self.max_tokens

    def wants_chunk(self) -> bool:
        """Return whether a request that decodes may have its next chunk: few enough samples are unread, none of its
        drafts is, and it has more to do."""
        return self.pending <= self.lookahead and not self.drafts and self.has_more

    @property
    def horizon(self) -> int:
        """The position up to which there is something to compute: its tokens, with those pending; of a model that fills
        in blocks, its open block."""
        if self.block_size:
            return (len(self.tokens) // self.block_size + 1) * self.block_size
        return len(self.tokens) + self.pending

    @property
    def extend_len(self) -> int:
        """Tokens that are not planned yet, with masked positions."""
        if self.block_size:
            return self.horizon - self.scheduled - self.drafts
        return len(self.tokens) + self.pending - self.scheduled
