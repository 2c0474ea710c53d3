"""A plan as arrays: a pure function, on the host, of the plan and the page table's host copy.

plan.chunks   [ decode | decode | prefill chunk ......... | prefill chunk .... ]
q_starts      0        1        2                         9                    14
per token     input id, position, KV slot                                          -> N
per row       page-table row, KV length                                            -> B
per sample    index of its last token, slot, position of the token to be sampled   -> S
per draft     its id, the sample in whose place it is                              -> D
per embedding index of its last token                                              -> E
per target    index of the token before it, its id, slot                           -> T

A row samples once, behind its last token. A row with drafts samples behind its last known token and behind each draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sluice.attention.states import StateRows
from sluice.runner.host_blocks import HostBlocks
from sluice.types import BatchPlan, Chunk

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]

UNREAD = 0
"""Placeholder for an input id that is still on the device."""


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """The drafts of a step, and which samples belong to one row. R = rows that sample, with drafts or without."""

    ids: Ints
    """[D] guessed tokens; `UNREAD` if the runner guesses them"""
    samples: Ints
    """[D] indices into S of the sample in whose place each draft is: a row's samples, the last one excepted"""
    firsts: Ints
    """[R] indices into S of each row's first sample"""
    counts: Ints
    """[R] samples of each row, side by side"""
    are_known: bool
    """Whether the ids are those of the drafts. Otherwise the runner guesses them."""

    @property
    def row_of(self) -> Ints:
        """[S] the row of each sample, of R."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def depths(self) -> Ints:
        """[S] how many drafts of its row are before each sample."""
        return np.arange(int(self.counts.sum())) - np.repeat(self.firsts, self.counts)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield each row's first sample, and the sample behind its last one."""
        return zip(self.firsts.tolist(), (self.firsts + self.counts).tolist(), strict=True)

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> HostDrafts | None:
        """Return the drafts of chunks that sample; None if there are none."""
        if not any(chunk.num_drafts for chunk in chunks):
            return None
        counts = np.array([chunk.num_drafts + 1 for chunk in chunks], dtype=np.int64)
        ends = counts.cumsum()
        has_draft = np.ones(ends[-1], dtype=bool)
        has_draft[ends - 1] = False
        ids = [token for chunk in chunks for token in chunk.drafts or (UNREAD,) * chunk.num_drafts]
        are_known = all(len(chunk.token_ids) == chunk.length for chunk in chunks if chunk.num_drafts)
        return cls(np.array(ids, dtype=np.int64), np.flatnonzero(has_draft), ends - counts, counts, are_known)

    def of_row(self, ids: Sequence[int], first: int, end: int) -> Sequence[int]:
        """Return the part of `ids` [D] of a row, given its first sample and the one behind its last."""
        before = int(self.samples.searchsorted(first))
        return ids[before : before + end - first - 1]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A step's inputs on the host, before the copy to the device. N and B are those of `ForwardBatch`."""

    input_ids: Ints
    """[N]; `UNREAD` at `late_tokens`"""
    positions: Ints
    """[N]"""
    kv_slots: Ints
    """[N]"""
    late_tokens: Ints
    """[L] indices into N whose id is what `late_slots` sampled last"""
    late_slots: Ints
    """[L]"""
    row_slots: Ints
    """[B] slot of each row"""
    q_starts: Ints32
    """[B + 1]"""
    kv_lens: Ints32
    """[B]"""
    sample_rows: Ints
    """[S] indices into B (and `plan.chunks`), ascending; a row with drafts is there as often as it samples"""
    sample_slots: Ints
    """[S]"""
    logit_rows: Ints
    """[S + E + T] indices into N: the token before each sample, the last token of each row that embeds, then the token
    before each target"""
    sample_positions: Ints
    """[S] position of the token being sampled"""
    embed_rows: Ints
    """[E] indices into B (and `plan.chunks`)"""
    target_ids: Ints
    """[T] prompt tokens whose log-probability is asked for"""
    target_rows: tuple[tuple[int, int], ...]
    """(row, its number of targets) of each row that has any; together T"""
    num_pages: int
    """Pages of the longest row."""
    num_decodes: int
    shared_pages: int = 0
    """See `ForwardBatch.shared_pages`."""
    drafts: HostDrafts | None = None
    """Drafts of the step; None if no row has any."""
    blocks: HostBlocks | None = None
    """Open blocks of a model of block diffusion, whose rows sample at masked positions; None if no row has one."""
    adapters: Ints32 | None = None
    """[N] the slot of each token's adapter, -1 for none; None if no token has one."""
    states: StateRows | None = None
    """Where the rows find their states; None for a model whose layers have none."""
    window_slots: Ints | None = None
    """[N] KV slots in layers with a window; None if all layers have the same pages."""

    def with_blocks(self, blocks: HostBlocks) -> HostBatch:
        """Return the step with the open blocks of its rows in the place of drafts."""
        sample_rows = blocks.plan_rows[blocks.rows]
        masked = self.q_starts[1:][sample_rows] - blocks.block_size + blocks.columns
        return replace(
            self,
            late_tokens=masked,
            late_slots=blocks.entries,
            sample_rows=sample_rows,
            sample_slots=blocks.slots[blocks.rows],
            logit_rows=masked,
            sample_positions=self.kv_lens[sample_rows] - blocks.block_size + blocks.columns,
            drafts=None,
            blocks=blocks,
        )

    @property
    def slots_of_rows(self) -> Ints:
        """[R] the slot of each row that samples."""
        return self.sample_slots if self.drafts is None else self.sample_slots[self.drafts.firsts]

    @property
    def arrays(self) -> tuple[Ints | Ints32, ...]:
        """The arrays that `DeviceState.forward_batch` needs on the device; the first `PER_ROW` of them hold rows."""
        return (
            self.input_ids,
            self.positions,
            self.kv_slots,
            self.row_slots,
            self.kv_lens,
            self.q_starts,
            self.logit_rows,
            self.late_tokens,
            self.late_slots,
            NO_TOKENS if self.adapters is None else self.adapters,
            NO_SLOTS if self.window_slots is None else self.window_slots,
        )


PER_ROW = 5
"""The first arrays of a `HostBatch`: in a step that only decodes, each has one entry a row."""
NUM_ARRAYS = 11
"""Length of `HostBatch.arrays`."""
KV_SLOTS, LOGIT_ROWS, LATE_TOKENS, LATE_SLOTS, ADAPTERS, WINDOW_SLOTS = 2, 6, 7, 8, 9, 10
"""Indices into `HostBatch.arrays`."""
NO_TOKENS: Ints32 = np.empty(0, dtype=np.int32)
NO_SLOTS: Ints = np.empty(0, dtype=np.int64)


def host_batch(plan: BatchPlan, page_table: Ints32, page_size: int, window_table: Ints32 | None = None) -> HostBatch:
    """Lay a plan out as arrays.

    Args:
        plan: a checked plan.
        page_table: [slots, max_pages] int32, the plan's new pages included.
        page_size: tokens of a page.
        window_table: the same for layers with a window; None: they have the same pages.
    """
    chunks = plan.chunks
    slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
    q_starts = np.concatenate(([0], lengths.cumsum()))
    ends = starts + lengths
    positions = np.arange(q_starts[-1]) + np.repeat(starts - q_starts[:-1], lengths)
    places = np.repeat(slots, lengths), positions // page_size
    offsets = positions % page_size
    is_late = np.array([len(chunk.token_ids) < chunk.length for chunk in chunks], dtype=bool)
    embed_rows = np.flatnonzero([chunk.embeds for chunk in chunks])
    not_single = np.flatnonzero(lengths != 1)
    num_decodes = int(not_single[0]) if len(not_single) else len(chunks)
    sample_rows, behind, drafts = _samples(chunks, num_decodes)
    if drafts is not None:
        is_late &= np.array([not chunk.num_drafts for chunk in chunks])
    counts = [len(chunk.targets) for chunk in chunks]
    target_ids = np.array([token for chunk in chunks for token in chunk.targets], dtype=np.int64)
    return HostBatch(
        input_ids=_input_ids(plan),
        positions=positions,
        kv_slots=page_table[places].astype(np.int64) * page_size + offsets,
        late_tokens=q_starts[1:][is_late] - 1,
        late_slots=slots[is_late],
        row_slots=slots,
        q_starts=q_starts.astype(np.int32),
        kv_lens=ends.astype(np.int32),
        sample_rows=sample_rows,
        sample_slots=slots[sample_rows],
        logit_rows=np.concatenate(
            (q_starts[1:][sample_rows] - 1 - behind, q_starts[1:][embed_rows] - 1, _ranges(q_starts[:-1], counts))
        ),
        sample_positions=ends[sample_rows] - behind,
        embed_rows=embed_rows,
        target_ids=target_ids,
        target_rows=tuple((row, count) for row, count in enumerate(counts) if count),
        num_pages=-(-int(ends.max(initial=0)) // page_size),
        num_decodes=num_decodes,
        shared_pages=_shared_pages(page_table, slots[:num_decodes], ends[:num_decodes], page_size),
        drafts=drafts,
        window_slots=None if window_table is None else window_table[places].astype(np.int64) * page_size + offsets,
    )


def _samples(chunks: Sequence[Chunk], num_decodes: int) -> tuple[Ints, Ints | int, HostDrafts | None]:
    """Return the row of each sample [S], how many tokens of its row are behind it [S], and the drafts.

    Args:
        num_decodes: the first chunks, which have one token and so no drafts.
    """
    rows = np.flatnonzero([chunk.samples for chunk in chunks])
    if num_decodes == len(chunks) or not any(chunk.num_drafts for chunk in chunks[num_decodes:]):
        return rows, 0, None
    drafts = HostDrafts.of([chunks[row] for row in rows.tolist()])
    assert drafts is not None, "a chunk with drafts does not sample"
    lasts = drafts.firsts + drafts.counts - 1
    behind = np.repeat(lasts, drafts.counts) - np.arange(lasts[-1] + 1)
    return np.repeat(rows, drafts.counts), behind, drafts


def _shared_pages(page_table: Ints32, slots: Ints, kv_lens: Ints, page_size: int) -> int:
    """Return how many pages all of these rows begin with, the last page of a row excepted."""
    most = (int(kv_lens.min()) - 1) // page_size if len(slots) > 1 else 0
    if most == 0 or (page_table[slots, 0] != page_table[slots[0], 0]).any():
        return 0
    same = (page_table[slots, :most] == page_table[slots[0], :most]).all(0)
    return most if same.all() else int(same.argmin())


def _ranges(starts: Ints, counts: list[int]) -> Ints:
    """Return `counts[i]` numbers from `starts[i]` on, for each i."""
    parts = [np.arange(start, start + count) for start, count in zip(starts.tolist(), counts, strict=True) if count]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _input_ids(plan: BatchPlan) -> Ints:
    ids: list[int] = []
    for chunk in plan.chunks:
        ids.extend(chunk.token_ids)
        if len(chunk.token_ids) < chunk.length:
            ids.extend([UNREAD] * (chunk.length - len(chunk.token_ids)))
    return np.array(ids, dtype=np.int64)
