"""What the device keeps by slot: KV pages, page-table rows, the token sampled last, and what features keep.

All of it can be dropped when no step is in flight: the scheduler preempts every request, and new plans build it again.
Plans change it at launch, all or nothing: `check` comes first, and `apply` cannot fail after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from sluice.attention.base import ForwardBatch, LayerKV, PagedKV, WindowRows
from sluice.attention.spec import KVShape, LayerHeads
from sluice.attention.states import StatePool, StateSpec
from sluice.models.spec import ModelSpec
from sluice.runner.features import NewGrammars, make_features
from sluice.runner.features.adapters import Adapters, SlotOf, none_loaded
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.host_blocks import HostBlocks
from sluice.runner.inputs import HostBatch, Ints, host_batch
from sluice.runner.last_tokens import LastTokens, PlainLastTokens, WatchedLastTokens
from sluice.runner.open_blocks import Denoising, OpenBlocks, WatchedOpenBlocks
from sluice.runner.page_table import PageTable, TableChanges, WindowTable
from sluice.runner.slot_states import SlotStates
from sluice.runner.windows import WindowShape
from sluice.types import BatchPlan, Chunk, PlanError


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """Sizes of the state."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_slots: int
    num_pages: int
    page_size: int
    row_pages: int
    """Most pages of one request."""
    dtype: torch.dtype
    device: torch.device
    scratch_pages: int = 0
    """0 or 1: one page more, number `num_pages`, of no request. Rows that only pad a batch write to it."""
    kv_dtype: torch.dtype | None = None
    """Type of the pages; None if it is `dtype`."""
    vocabulary: range | None = None
    """Tokens whose logits are computed here, on one of several ranks; None: all."""
    unequal_kv: tuple[LayerHeads, ...] = ()
    """As in `ModelSpec`, as the next two."""
    state: StateSpec | None = None
    num_states: int = 0
    reach: int = 0
    """As in `StatePool`."""
    num_records: int = 0
    shares_state: bool = False
    """All slots have one state in memory, for a step on meaningless data."""
    window: WindowShape | None = None
    """Pages of layers with a window; None: all layers have the same ones."""

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        device: torch.device,
        *,
        num_slots: int,
        num_pages: int,
        page_size: int,
        row_pages: int,
        scratch_pages: int = 0,
        reach: int = 0,
    ) -> Self:
        """Return the shape of a model's state."""
        return cls(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab_size,
            num_slots=num_slots,
            num_pages=num_pages,
            page_size=page_size,
            row_pages=row_pages,
            dtype=spec.dtype,
            device=device,
            scratch_pages=scratch_pages,
            unequal_kv=spec.unequal_kv,
            state=spec.state,
            num_states=spec.num_states,
            reach=reach,
        )

    @property
    def page_dtype(self) -> torch.dtype:
        return self.kv_dtype or self.dtype

    @property
    def layer(self) -> KVShape:
        """The pages of one layer."""
        pages = self.num_pages + self.scratch_pages
        return KVShape(pages, self.page_size, self.num_kv_heads, self.head_dim, self.page_dtype, self.device)

    @property
    def layers(self) -> tuple[KVShape, ...]:
        """The pages of each layer that has some of its own."""
        layers = (self.layer,) * self.num_layers
        if self.unequal_kv:
            layers = tuple(replace(self.layer, **heads._asdict()) for heads in self.unequal_kv)
        window = self.window
        if window is None:
            return layers
        pages = window.allocated(self.scratch_pages)
        return tuple(
            replace(layer, num_pages=pages) if is_windowed else layer
            for layer, is_windowed in zip(layers, window.are_windowed, strict=True)
        )


KVMaker = Callable[[KVShape], PagedKV]


class DeviceState:
    """The state, allocated once.

    Args:
        new_kv: makes the pages of one layer, as the attention backend wants them.
        watched: notice when a step reads a token that was not sampled, or a block that is not open, for a few
            operations a step.
        new_grammars: makes the feature of grammars.
        denoising: how blocks are filled, for a model of block diffusion.
        adapter_slot_of: of the model's bank of adapters.

    KV is left uninitialised. On a CPU the system then commits memory page by page as it is written, so a large pool
    takes only what is used of it. What was never written may be NaN, and attention must not let it through.
    """

    def __init__(
        self,
        shape: DeviceShape,
        new_kv: KVMaker = LayerKV.empty,
        *,
        watched: bool = False,
        new_grammars: NewGrammars = GrammarMasks,
        denoising: Denoising | None = None,
        adapter_slot_of: SlotOf = none_loaded,
    ) -> None:
        self.shape = shape
        self.kv = tuple(new_kv(layer) for layer in shape.layers)
        self.page_table = _page_table(shape)
        if shape.window is not None:
            self.clear_null_page(shape.window)
        new_last_tokens = WatchedLastTokens if watched else PlainLastTokens
        self.last_tokens: LastTokens = new_last_tokens(shape.num_slots, shape.device)
        self._block_size = 0
        """Block size of a model of block diffusion."""
        blocks = None
        if denoising is not None:
            self._block_size = denoising.model.block_size
            new_blocks = WatchedOpenBlocks if watched else OpenBlocks
            self.last_tokens = blocks = new_blocks(shape.num_slots, shape.device, denoising)
        sizes = shape.num_slots, shape.vocab_size, shape.device
        self.adapters = Adapters(shape.num_slots, adapter_slot_of)
        self.features = (self.adapters, *make_features(*sizes, new_grammars, shape.vocabulary, blocks))
        self._filled = np.zeros(shape.num_slots, dtype=bool)
        self._open_at: Ints = np.full(shape.num_slots, -1, dtype=np.int64)
        """Place of the block that a slot has open."""
        self.states = None if shape.state is None else _slot_states(shape, shape.state)
        """Recurrent states of the slots; None for a model whose layers have none."""

    def clear_null_page(self, window: WindowShape) -> None:
        """Fill the page with zeros that stands for those which a window has left."""
        null = window.null_page(self.shape.scratch_pages)
        for layer in self.windowed_kv:
            layer.k[null].zero_()
            layer.v[null].zero_()

    @property
    def windowed_kv(self) -> Sequence[PagedKV]:
        """The pages of layers with a window, if these have pages of their own."""
        window = self.shape.window
        return () if window is None else tuple(itertools.compress(self.kv, window.are_windowed))

    def check(self, plan: BatchPlan, *, guesses_drafts: bool = False) -> None:
        """Refuse a plan that cannot be run, before anything changes.

        Args:
            guesses_drafts: whether the runner guesses drafts whose ids are in no chunk.

        Raises:
            PlanError: names the step and what is wrong with it.
        """
        fresh = {new.slot for new in plan.new_slots}
        chunks = [*plan.chunks, *(part.chunk for part in plan.slices if part.is_resident)]
        used = {chunk.slot for chunk in chunks}
        runs = plan.chunks or plan.copies or plan.slices or plan.dropped or plan.saved
        _require(bool(runs), plan, "it has neither chunks nor copies")
        _require(len(fresh) == len(plan.new_slots), plan, "it fills a slot twice")
        _require(len(used) == len(chunks), plan, "it runs a slot twice")
        for new in plan.new_slots:
            for feature in self.features:
                problem = feature.problem(new)
                _require(problem is None, plan, problem)
            low, high = min(new.history, default=0), max(new.history, default=0)
            _require(
                low >= 0 and high < self.shape.vocab_size,
                plan,
                f"a history of tokens {low}..{high} of {self.shape.vocab_size}",
            )
        slots = fresh | used
        if slots and not 0 <= min(slots) <= max(slots) < self.shape.num_slots:
            wrong = next(slot for slot in slots if not 0 <= slot < self.shape.num_slots)
            raise PlanError(f"plan of step {plan.step} cannot run: slot {wrong} of {self.shape.num_slots}")
        for chunk in chunks:
            problem = self._problem_of(chunk, chunk.slot in fresh, guesses_drafts=guesses_drafts)
            if problem is not None:
                raise PlanError(f"plan of step {plan.step} cannot run: {problem}")
        if self.states is not None:
            problem = self.states.problem_of(plan)
            _require(problem is None, plan, problem)

    def _problem_of(self, chunk: Chunk, is_fresh: bool, *, guesses_drafts: bool) -> str | None:
        """Return what is wrong with a chunk of an existing slot. Hundreds of decodes go through here every step."""
        shape, ids, new_pages, targets = self.shape, chunk.token_ids, chunk.new_pages, chunk.targets
        if not (is_fresh or self._filled[chunk.slot]):
            return f"slot {chunk.slot} was never filled"
        if chunk.length < 1 or chunk.start < 0:
            return f"bounds of {chunk}"
        if self._block_size:
            if (problem := _problem_of_blocks(chunk, self._block_size)) is not None:
                return problem
        elif chunk.num_drafts:
            if (problem := _problem_of_drafts(chunk, guesses_drafts=guesses_drafts)) is not None:
                return problem
        elif not 0 <= chunk.length - len(ids) <= 1:
            return f"{len(ids)} token ids for length {chunk.length}"
        if ids and not 0 <= min(ids) <= max(ids) < shape.vocab_size:
            return f"token ids {min(ids)}..{max(ids)} of {shape.vocab_size}"
        if targets and not 0 <= min(targets) <= max(targets) < shape.vocab_size:
            return f"targets {min(targets)}..{max(targets)} of {shape.vocab_size}"
        if len(targets) > chunk.length:
            return f"{len(targets)} targets of {chunk.length} tokens"
        if new_pages and not 0 <= min(new_pages) <= max(new_pages) < shape.num_pages:
            return f"pages {min(new_pages)}..{max(new_pages)} of {shape.num_pages}"
        pages = len(new_pages) if is_fresh else int(self.page_table.lengths[chunk.slot])
        if new_pages and not is_fresh:
            first = -(-chunk.end // shape.page_size) - len(new_pages)
            if not 0 <= first <= pages:
                return f"{len(new_pages)} pages up to token {chunk.end} behind a row of {pages} pages"
            pages = first + len(new_pages)
        if pages > shape.row_pages:
            return f"{pages} pages in a row of {shape.row_pages}"
        if chunk.start + chunk.length > pages * shape.page_size:
            return f"{pages} pages do not hold {chunk.end} tokens"
        return _problem_of_windows(chunk, shape) if new_pages or chunk.new_window_pages else None

    def apply(self, plan: BatchPlan) -> TableChanges:
        """Take over new slots and pages of a checked plan on the host. Return the arrays that `change` needs."""
        for new in plan.new_slots:
            for feature in self.features:
                feature.forget(new.slot)
                feature.fill(new)
            self._filled[new.slot] = True
            self._open_at[new.slot] = -1
        if self.states is not None:
            self.states.apply(plan)
        cleared, size = [new.slot for new in plan.new_slots], self.shape.page_size
        chunks = plan.chunks
        if plan.slices:
            chunks = (*chunks, *(part.chunk for part in plan.slices if part.new_pages))
        additions = [
            (chunk.slot, 0 if chunk.slot in cleared else -(-chunk.end // size) - len(chunk.new_pages), chunk.new_pages)
            for chunk in chunks
            if chunk.new_pages
        ]
        of_windows = [
            (chunk.slot, -(-chunk.end // size) - len(chunk.new_window_pages), chunk.new_window_pages)
            for chunk in chunks
            if chunk.new_window_pages
        ]
        return self.page_table.plan(cleared, additions, of_windows)

    def laid_out(self, plan: BatchPlan) -> HostBatch:
        """Lay an applied plan out as arrays."""
        host = host_batch(plan, self.page_table.host, self.shape.page_size, self.page_table.window_host)
        adapters = self.adapters.of_tokens(host.row_slots, np.diff(host.q_starts).astype(np.int64))
        if adapters is not None:
            host = replace(host, adapters=adapters)
        if self.states is not None:
            host = replace(host, states=self.states.rows(plan.chunks))
        if not self._block_size:
            return host
        blocks = HostBlocks.of(plan.chunks, self._block_size, self._open_at)
        return host if blocks is None else host.with_blocks(blocks)

    def change(self, cleared: torch.Tensor, entries: torch.Tensor, pages: torch.Tensor) -> None:
        """Do the device's part of `apply`, with the arrays it returned as tensors."""
        self.page_table.change(cleared, entries, pages)
        if len(cleared):
            self.last_tokens.open(cleared)

    def forward_batch(self, host: HostBatch, tensors: Sequence[torch.Tensor]) -> ForwardBatch:
        """Return a step's inputs as models take them, with the tokens that never left the device.

        Args:
            tensors: `host.arrays` on the device.
        """
        ids, positions, kv_slots, row_slots, kv_lens, q_starts, logit_rows, *rest = tensors
        late_tokens, late_slots, adapters, window_slots = rest
        window = None
        if host.window_slots is not None:
            sizes = host.num_pages, self.shape.page_size
            window = WindowRows(window_slots, self.page_table.window_rows(row_slots, kv_lens, q_starts, *sizes))
        return ForwardBatch(
            input_ids=ids.index_copy(0, late_tokens, self.last_tokens.read(late_slots)),
            positions=positions,
            kv_slots=kv_slots,
            page_table=self.page_table.rows(row_slots, kv_lens, host.num_pages, self.shape.page_size),
            q_starts=q_starts,
            kv_lens=kv_lens,
            logit_rows=logit_rows,
            q_lens=tuple(np.diff(host.q_starts).tolist()),
            kv_lens_host=tuple(host.kv_lens.tolist()),
            num_decodes=host.num_decodes,
            shared_pages=host.shared_pages,
            adapters=None if host.adapters is None else adapters,
            states=host.states,
            layer_states=() if self.states is None else self.states.pool.layers,
            window=window,
        )


def _slot_states(shape: DeviceShape, spec: StateSpec) -> SlotStates:
    padding = 1 if shape.scratch_pages else 0
    sizes = shape.num_states, shape.num_slots + padding, shape.num_records, shape.reach
    pool = StatePool(spec, *sizes, shape.device, is_shared=shape.shares_state)
    for slot in range(shape.num_slots, shape.num_slots + padding):
        pool.open(slot, 0, None)
    return SlotStates(pool, shape.num_slots, shape.num_records)


def _page_table(shape: DeviceShape) -> PageTable:
    """Return the empty page table of a state."""
    window, scratch = None, shape.num_pages if shape.scratch_pages else None
    if shape.window is not None:
        null_page = shape.window.null_page(shape.scratch_pages)
        second = shape.window.num_pages if shape.scratch_pages else None
        window = WindowTable(shape.window.length, null_page, second)
    return PageTable(shape.num_slots, shape.row_pages, shape.device, scratch, window)


def _problem_of_windows(chunk: Chunk, shape: DeviceShape) -> str | None:
    """Return what is wrong with a chunk's pages of layers with a window."""
    pages = chunk.new_window_pages
    if shape.window is None:
        return f"pages {pages} of windows, which no layer has" if pages else None
    if bool(pages) != bool(chunk.new_pages):
        return f"{len(chunk.new_pages)} new pages, and {len(pages)} of windows"
    if pages and not 0 <= min(pages) <= max(pages) < shape.window.num_pages:
        return f"pages {min(pages)}..{max(pages)} of windows of {shape.window.num_pages}"
    return f"{len(pages)} pages of windows for {chunk.end} tokens" if len(pages) > len(chunk.new_pages) else None


def _problem_of_drafts(chunk: Chunk, *, guesses_drafts: bool) -> str | None:
    """Return what is wrong with the drafts of a chunk."""
    if not 0 < chunk.num_drafts < chunk.length:
        return f"{chunk.num_drafts} drafts in length {chunk.length}, one token of which is known at least"
    known = chunk.length - chunk.num_drafts
    if len(chunk.token_ids) != chunk.length and not (guesses_drafts and len(chunk.token_ids) == known):
        return f"{len(chunk.token_ids)} token ids for length {chunk.length}, of which {chunk.num_drafts} are drafts"
    if not chunk.samples or chunk.targets or chunk.embeds:
        return f"{chunk.num_drafts} drafts in a chunk that does not sample, or does more"
    return None


def _problem_of_blocks(chunk: Chunk, block_size: int) -> str | None:
    """Return what is wrong with a chunk for a model of block diffusion."""
    if chunk.start % block_size or chunk.end % block_size:
        return f"tokens {chunk.start} to {chunk.end} are no whole blocks of {block_size}"
    if not 0 <= chunk.num_drafts <= block_size:
        return f"{chunk.num_drafts} masked positions in a block of {block_size}"
    if len(chunk.token_ids) != chunk.length - chunk.num_drafts:
        return f"{len(chunk.token_ids)} token ids for length {chunk.length} with {chunk.num_drafts} masked positions"
    if chunk.samples != bool(chunk.num_drafts) or chunk.targets or chunk.embeds:
        return f"{chunk.num_drafts} masked positions in a chunk that samples: {chunk.samples}, or does more"
    return None


def _require(ok: bool, plan: BatchPlan, problem: str | None) -> None:
    if not ok:
        raise PlanError(f"plan of step {plan.step} cannot run: {problem}")
