"""The plan of a step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sluice.types.sampling import SamplingParams
from sluice.types.scheduler_limits import Bound
from sluice.types.submit import Submit
from sluice.types.tiers import PageCopy


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
    """Pages written to the slot's page-table row before the forward, as the last of those that hold the tokens up to
    `end`. The row had pages up to there, or beyond: pages beyond were for drafts that were not accepted, and no longer
    belong to the slot."""
    samples: bool
    """Whether to sample the token at position `start + length`: the chunk reaches the end of what is known."""
    targets: tuple[int, ...] = ()
    """Prompt tokens at `start + 1` and on whose log-probabilities this chunk computes."""
    embeds: bool = False
    """Whether the hidden state of the last token is the result: the chunk ends the prompt of a request that embeds."""
    num_drafts: int = 0
    """The last so many of its tokens are drafts: guesses of what follows the known ones. The chunk then samples at
    `num_drafts + 1` positions, from `known_end` on. Their ids are the last of `token_ids`, or, if the runner drafts,
    in none. Of a model that fills in blocks they are the masked positions of an open block: the runner knows their
    inputs, and samples at each of them."""
    firm: int = 0
    """Of a model with states: how many tokens of the request are firm behind this chunk, which no later chunk can begin
    before. Its anchor moves up to there (`attention/states.py`)."""
    checkpoints: tuple[tuple[int, int], ...] = ()
    """Records of the state to make: (position, record), ascending, positions at which the anchor arrives in this
    chunk."""
    new_window_pages: tuple[int, ...] = ()
    """Where layers with a window have pages of their own, what `new_pages` is of the others. Of a new slot's cached
    prefix there are only the pages that the window has not left."""

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def known_end(self) -> int:
        """Where its drafts begin; its end if it has none."""
        return self.end - self.num_drafts

    @property
    def num_samples(self) -> int:
        """How many tokens it samples."""
        return self.num_drafts + 1 if self.samples else 0

    @property
    def drafts(self) -> tuple[int, ...]:
        """The ids of its drafts; none if the runner drafts."""
        return self.token_ids[self.length - self.num_drafts :] if self.num_drafts else ()


class ChunkSlice(NamedTuple):
    """A slice of the work on one chunk, which is computed over several steps, between the rows of others.

    A chunk consists of `total` work items, done in order, in one step or over several. Of a *resident* chunk, all of
    whose context is on the device, each layer is one; in a pipeline see `LayerItems`. Of an *offloaded* one, the KV of
    the request's first `base` tokens is on a lower tier and is attended to through a ring, and the tokens from there to
    the chunk's end are on the device: in each layer there is an item for every group of blocks of the ring, and one for
    the tokens on the device.

    Where loads are reported (`OffloadLimits.reports_loads`), the first slice of an offloaded chunk has no work items:
    it begins the chunk, so that its blocks are read ahead.
    """

    chunk: Chunk
    """The chunk; among the plan's chunks in the step that completes it. The `new_pages` of a resident one are written
    to its slot's row in the step of its first slice; an offloaded one has none."""
    stored_pages: tuple[int, ...]
    """Page numbers on the tier, appended to those of the slot; together these pages hold `base` tokens."""
    base: int
    """A multiple of the page size."""
    pages: tuple[int, ...]
    """Pages on the device that hold the tokens from `base` on, in order; empty if the chunk is resident."""
    first: int
    """The first work item of this step."""
    stop: int
    """The work item after the last one of this step."""
    total: int
    is_decode: bool = False
    """Whether the chunk is a generated token, and not the last one of a prompt: then its blocks may be selected."""
    is_resident: bool = False
    """Whether all of its context is on the device."""

    @property
    def completes(self) -> bool:
        return self.stop == self.total

    @property
    def new_pages(self) -> tuple[int, ...]:
        """Pages that are written to the slot's row in its step."""
        return self.chunk.new_pages if self.is_resident and self.first == 0 else ()


class NewSlot(NamedTuple):
    """A newly filled slot and the request in it. The slot's page-table row is empty; the first chunk brings the pages.

    Randomness is keyed by (`sampling.seed`, `sample_index`, position of the token being sampled), never by slot, step
    or request id.
    """

    slot: int
    submit: Submit
    """The request, without its prompt and outputs: these come in chunks, or are in the cache."""
    prompt_len: int = 0
    """Tokens of the prompt: those behind them are outputs."""
    history: tuple[int, ...] = ()
    """All tokens known, if the sampling has penalties or the request a grammar: those of a cached prefix come in no
    chunk."""
    cached: int = 0
    """Of a model with states: tokens of the cached prefix, behind which `record` was made."""
    record: int | None = None
    """Of a model with states: the record that its state begins as; None: it begins as that of no tokens."""

    @property
    def request_id(self) -> int:
        return self.submit.request_id

    @property
    def sampling(self) -> SamplingParams:
        """Resolved: `seed` and `max_tokens` are set."""
        return self.submit.sampling

    @property
    def sample_index(self) -> int:
        return self.submit.sample_index


class Regime(StrEnum):
    """Kinds of steps, which take their time for different work."""

    DECODE = "decode"
    GRAPH = "decode_graph"
    """Decodes that replay a captured graph."""
    MIXED = "mixed"
    """Decodes and prefill."""
    PREFILL = "prefill"
    SLICED = "sliced"
    """Decodes, and some layers of a resident chunk."""
    LAYERS = "layers"
    """Some layers of a resident chunk, and no decodes."""


class PredictedStep(NamedTuple):
    """What a step is expected to take, in microseconds."""

    regime: Regime
    target: int
    """Microseconds that it may take; 0: that is not known yet."""
    predicted: int
    at_quantile: int
    """Microseconds with the margin: it takes no longer with the probability that is asked for."""
    is_infeasible: bool = False
    """It is predicted to exceed the target, although it has no prefill or the least."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step. Decodes come first in `chunks`; result rows follow the order of the chunks that sample."""

    step: int
    new_slots: tuple[NewSlot, ...]
    chunks: tuple[Chunk, ...]
    bound_by: Bound = Bound.NOTHING
    num_decodes: int = 0
    """Number of leading chunks that are decodes."""
    copies: tuple[PageCopy, ...] = ()
    """Copies of pages, in order, before the chunks. A plan may hold copies alone."""
    dropped: tuple[int, ...] = ()
    """Pages of the disk tier to forget, before the copies: no restart may restore them."""
    slices: tuple[ChunkSlice, ...] = ()
    """Work on chunks that take several steps. Those that it completes are the last of `chunks`, in the same order."""
    pace: PredictedStep | None = None
    """The time that the step is expected to take; None without an ITL target, and for copies alone."""
    saved: tuple[tuple[int, int], ...] = ()
    """Of a model with states: (slot, record) of slots whose state, at their anchor, is copied to a record before any
    new slot is filled. A plan may hold these alone."""
    given_up: tuple[int, ...] = ()
    """Slots whose resident chunk is half done and will not be completed, and that no new request has yet: what is kept
    of it is dropped, after the slices."""

    @property
    def whole_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that are computed in this step: all but those that its slices complete."""
        completed = sum(part.completes for part in self.slices) if self.slices else 0
        return self.chunks[: len(self.chunks) - completed] if completed else self.chunks

    @property
    def num_decoded(self) -> int:
        """Number of chunks that are decodes, with offloaded ones, which are not among the first."""
        return self.num_decodes + sum(part.completes and part.is_decode for part in self.slices)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def num_drafts(self) -> int:
        return sum(chunk.num_drafts for chunk in self.chunks)


class PlanError(ValueError):
    """A plan does not fit the state of the device or the tiers. No part of it was executed."""
