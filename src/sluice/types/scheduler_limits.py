"""The limits of a scheduler, and which of them bound a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import lcm
from typing import Literal, NamedTuple, get_args

from sluice.types.experts import DENSE, ExpertCounts
from sluice.types.layer_items import LayerItems
from sluice.types.tiers import Tier

CHUNKS_BY_TIME = -1
"""Stands for dynamic chunks that follow the measured time of steps."""
ITL_AUTO = -4
"""An ITL target below 0 is as many steps of the running decodes, by the time that these were measured to take."""

NGRAM = "ngram"
"""The algorithm that guesses by n-grams, in the scheduler. All others guess in the runner."""

ClassName = Literal["interactive", "standard", "batch"]
Priority = int | str
"""What a request asks for: a number where requests are ordered by priority, a class where they are by deadline."""
CLASS_NAMES: tuple[ClassName, ...] = get_args(ClassName)
"""Names of the classes, from the most urgent to the least."""
DEFAULT_CLASS: ClassName = "standard"
"""The class of requests that name none."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The scheduler's limits: the resolved form of `config.SchedulerConfig`, which describes each.

    `chunked_prefill_size=0` means prompts are never cut; 0 for `max_prefill_tokens`, `long_prefill_token_threshold`,
    `max_prefill_requests`, `max_queued_requests` and `max_queued_tokens` means no limit.
    `max_running_requests < max_batch_tokens`, so decodes alone never fill a step. `dynamic_chunking` is the position at
    which a prompt token takes twice as long as the first one; `CHUNKS_BY_TIME`: by what steps take; 0: all tokens count
    the same. `itl_target` is the time of a step with streams, in microseconds, which the share `itl_quantile` of
    these steps is to be within; 0: steps are not timed; below 0: it is so many steps of the running decodes. It needs
    prompts that may be cut, where `chunked_prefill_size` is the most prefill of a step, and the schedule `mixed`.
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
    dynamic_chunking_smoothing: float = 1.0
    """How far dynamic chunks go from `chunked_prefill_size` to what takes as long as the first one; 1: all the way."""
    itl_target: int = 0
    itl_quantile: float = 0.95
    classes: tuple[PriorityClass, ...] = ()
    """Classes of the policy `deadline`, from the most urgent to the least; empty under other policies."""
    pipeline_stages: int = 1
    """Stages that compute a step one after the other. With more than one, decodes are divided among the steps. There
    are one more in flight than stages."""
    num_draft_tokens: int = 0
    """Most drafts of a row."""
    block_size: int = 0
    """Tokens that a model of block diffusion fills in at a time. Its chunks are whole blocks, of which the last may
    have masked positions. 0: the model generates token by token."""
    sliced_chunk_size: int = 0
    """Most tokens of a resident chunk whose layers are divided among steps (`ChunkSlice`); 0: none is. Needs an ITL
    target."""
    num_layers: int = 0
    """Layers of the model, where chunks are sliced."""
    part_tokens: int = 128
    """Fewest tokens of the parts of such a chunk in a pipeline (`LayerItems`)."""
    experts: ExpertCounts = DENSE
    """Of the model, by which the time of steps is predicted."""
    states: StateLimits | None = None
    """Of the model, whose layers have recurrent states; None: they have none."""
    max_loras: int = 0
    """Adapters that one step computes with, each in a slot of its own; 0: requests have none."""
    prefills_by_block: bool = False
    """A prompt of such a model has one block in a step; otherwise as many as other budgets leave."""

    def layer_items(self, length: int) -> LayerItems:
        """Return the work items of a sliced chunk of so many tokens."""
        return LayerItems.of(self.num_layers, self.pipeline_stages, length, self.part_tokens)

    def level(self, name: str) -> int:
        """Return the position of a class among `classes`; 0 if there are none.

        Args:
            name: of the class; "" is `DEFAULT_CLASS`.

        Raises:
            ValueError: no class has this name.
        """
        if not self.classes:
            return 0
        names = [each.name for each in self.classes]
        if (name or DEFAULT_CLASS) not in names:
            raise ValueError(f"priority class must be one of {', '.join(names)}, got {name!r}")
        return names.index(name or DEFAULT_CLASS)


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
    ITL_TARGET = "itl_target"
    OFFLOAD_BUDGET = "offload_budget"
    """More of the work on a chunk of an offloaded context is ready than the step's prefill budget pays for."""
    DISK_READS = "disk_reads"
    """A chunk of an offloaded context waits for blocks that a disk has not brought."""


class WorkItems(NamedTuple):
    """The work items of an offloaded chunk in order: for each layer one for every group of blocks, then the rest.

    The first layers may have more groups than the others.
    """

    wide_layers: int
    """The first layers."""
    wide_groups: int
    """Groups of each of them."""
    other_layers: int
    groups: int
    """Groups of each of the others."""

    @property
    def total(self) -> int:
        return self.before(self.wide_layers + self.other_layers)

    def before(self, layer: int) -> int:
        """Return how many items precede those of a layer."""
        wide = min(layer, self.wide_layers)
        return wide * (self.wide_groups + 1) + (layer - wide) * (self.groups + 1)

    def groups_of(self, layer: int) -> int:
        return self.wide_groups if layer < self.wide_layers else self.groups

    def rests(self, count: int) -> int:
        """Return how many layers the first `count` items complete."""
        of_wide = self.before(self.wide_layers)
        if count < of_wide:
            return count // (self.wide_groups + 1)
        return self.wide_layers + (count - of_wide) // (self.groups + 1)

    def is_rest(self, item: int) -> bool:
        """Return whether an item is the rest of a layer."""
        return self.rests(item + 1) > self.rests(item)


class Group(NamedTuple):
    """What a work item attends to: several blocks of the ring, or a part of one."""

    blocks: int = 1
    parts: int = 1
    """Parts of a block; more than one only where `blocks` is 1."""

    def items(self, blocks: int) -> int:
        """Return the work items of so many blocks."""
        return -(-blocks // self.blocks) * self.parts


@dataclass(frozen=True, slots=True)
class OffloadLimits:
    """Limits and costs of *offloaded* requests, whose context is longer than the device.

    Their KV is on a lower tier. A chunk of such a request consists of work items: in each layer one for every group
    of blocks of the ring, and one for the tokens on the device. Costs are in tokens of the step's budget: an item of
    cost n takes as long as n ordinary tokens.
    """

    above: int
    """Requests of more tokens than this, prompt and output together, are offloaded."""
    tier: Tier
    """Where the contexts' KV is stored."""
    page_bytes: int
    """Size of a page on the tier."""
    chunk_tokens: int
    """Most tokens of a chunk, a multiple of the page size."""
    window_pages: int
    """Pages on the device that an offloaded request holds: more than a chunk fills."""
    num_layers: int
    block_pages: int
    """Pages of a block of the ring."""
    group_blocks: int
    """Blocks that one work item attends to."""
    block_parts: int = 1
    """Work items that a block makes, each of a part of it; more than one only where `group_blocks` is 1."""
    decode_group_blocks: int = 0
    """Blocks that one work item of a decoded token attends to, which computes less with each; 0: as others do."""
    decode_blocks: int = 0
    """Most blocks that a decoded token attends to in the layers from `decode_from` on; 0: all."""
    decode_from: int = 0
    """First of the layers in which a decoded token attends to `decode_blocks`, and a chunk of a prompt to
    `prefill_blocks`. Those before attend to all."""
    decode_lag: int = 0
    """Most full pages before a decoded token that may not be on the tier yet, where decoded tokens attend to a
    selection: it is made of the pages before these, so that it depends on the position alone, and tokens that are
    computed again are decoded one by one, as they were. 0: they attend to all."""
    prefill_blocks: int = 0
    """Most blocks that a chunk of a prompt attends to, if it has `prefill_from` tokens at least; 0: all."""
    prefill_from: int = 0
    """Fewest tokens of a chunk that attends to `prefill_blocks`. Shorter ones attend to all."""
    pair_cost: float = 0.0
    """Cost of a query and a key in one layer."""
    load_cost: float = 0.0
    """Cost of loading the KV of one token in one layer, beside the computation."""
    reports_loads: bool = False
    """Whether blocks are read ahead from a disk: then a work item is planned once `engine.messages.BlocksLoaded` has
    reported that all its blocks are loaded. Otherwise loads are never late, and any work item may be planned."""

    selects_ahead: bool = True
    """Whether the blocks that a chunk attends to are known before its tokens are."""
    pages_per_step: int = 1024
    """Most pages that are looked up and reserved in a step for requests that begin, and most that are given back for
    one that has ended: a context of a million tokens has very many, and streams wait meanwhile."""

    def items(self, base_pages: int, length: int, *, is_decode: bool) -> WorkItems:
        """Return the work items of a chunk of `length` tokens after `base_pages` pages on the tier."""
        blocks, group = -(-base_pages // self.block_pages), self.group_of(is_decode=is_decode)
        of_prefill = self.prefill_blocks if length >= self.prefill_from else 0
        most = self.decode_blocks if is_decode else of_prefill
        wide_layers = min(self.decode_from, self.num_layers) if most else 0
        return WorkItems(
            wide_layers,
            group.items(blocks),
            self.num_layers - wide_layers,
            group.items(min(blocks, most) if most else blocks),
        )

    def group_of(self, *, is_decode: bool) -> Group:
        """Return what one work item of a chunk attends to."""
        if is_decode and self.decode_group_blocks:
            return Group(self.decode_group_blocks)
        return Group(self.group_blocks, self.block_parts)

    def keys_of_group(self, page_size: int, *, is_decode: bool) -> float:
        """Return the tokens that one work item attends to."""
        group = self.group_of(is_decode=is_decode)
        return group.blocks * self.block_pages * page_size / group.parts

    def cost_of_group(self, length: int, page_size: int, *, is_decode: bool) -> float:
        """Return what attending to one group costs a chunk of `length` tokens. Loads run beside the computation."""
        keys = self.keys_of_group(page_size, is_decode=is_decode)
        return keys * max(length * self.pair_cost, self.load_cost)

    def cost_of_rest(self, length: int) -> float:
        """Return what the rest of a layer costs."""
        return length / self.num_layers


class NgramLimits(NamedTuple):
    """How n-grams are looked up."""

    shortest: int = 2
    """Least tokens of a match."""
    longest: int = 12
    """Tokens from which on matches are as good as each other; at least `shortest`."""
    capacity: int = 131_072
    """Tokens of recent answers that are kept; 0: none are."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What guesses tokens ahead. How many there may be is `SchedulerLimits.num_draft_tokens`."""

    algorithm: str
    ngram: NgramLimits = field(default_factory=NgramLimits)
    """Used by `NGRAM` alone."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """The targets of the requests of a class, in microseconds."""

    name: str
    ttft_target: int
    """Microseconds from a request's arrival to its first token."""
    itl_target: int = 0
    """Microseconds that its stream may stand still in a step; 0: the scheduler's own target."""


CACHED_SHARE = 8
"""Pages of other layers for each page of windows beside those that running requests need: it keeps what others may find
again."""


class WindowLimits(NamedTuple):
    """Layers whose queries see the latest positions alone, and which have pages of their own."""

    length: int
    """Positions that a query sees at most, its own included."""
    num_pages: int
    """Pages of these layers on the device: at least as many as running requests need at once, so that none ever waits
    for one. More of them keep what other requests may find again."""


class StateLimits(NamedTuple):
    """What a scheduler knows of the states of a model's layers."""

    block: int
    """Tokens between two places at which the anchor of a state may be."""
    num_records: int = 0
    """Records that the device holds: copies of states behind cached prefixes."""
    spacing: int = 0
    """A long context gets a record every so many tokens, beside those where its prompt ends or parts from others; 0:
    none."""

    def grid(self, page_size: int) -> int:
        """Return the tokens between two places at which a record may be made: ends of pages where an anchor may be."""
        return lcm(self.block, page_size)
