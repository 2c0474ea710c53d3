"""Offloader: runs slices of the work on offloaded chunks, and keeps the chunk that is half done between steps.

There is one such chunk at most, since the ring and its loads are its own. A slice that begins another chunk drops it,
which happens when its request has ended or was preempted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.device.background import Background
from sluice.device.memory import kv_bytes
from sluice.kv.ring import DeviceRing
from sluice.runner.device_state import DeviceState, KVMaker
from sluice.runner.forwards import Model
from sluice.runner.inputs import UNREAD, Ints32
from sluice.runner.last_tokens import LastTokens
from sluice.runner.offload.attention import OffloadedAttention, OffloadedContext
from sluice.runner.offload.coroutine import UNWINDING, Coroutine, may_not_pause
from sluice.runner.offload.loaders import Loader, LoadTotals
from sluice.runner.offload.reader import RingReader
from sluice.runner.offload.sparse import Full, SparsePolicy
from sluice.types import Chunk, ChunkSlice, Group, WorkItems

NewLoader = Callable[[PagedKV, int], Loader[Any, Any]]
"""Makes a loader from the ring's pages and the number of them in a block."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """Sizes of the ring."""

    num_blocks: int
    """Blocks that it has buffers for."""
    block_pages: int
    most_blocks: int | None = None
    """Most blocks attended to in one call; None: as many as there is room for beside those that load."""
    most_decode_blocks: int | None = None
    """`most_blocks` for a decoded token."""
    block_parts: int = 1
    """Parts of a block that are attended to in a call each, where a call has one block; not for decoded tokens."""
    decode_lag: int = 0
    """Full pages before a decoded token that the policy does not select from (`OffloadLimits.decode_lag`)."""

    @property
    def group_blocks(self) -> int:
        """Blocks attended to in one call: half of the ring at most, while the rest loads. A ring of one waits."""
        return self._group(self.most_blocks)

    def group_of(self, *, is_decode: bool) -> Group:
        """Return what a chunk attends to in one call."""
        return Group(self._group(self.most_decode_blocks)) if is_decode else Group(self.group_blocks, self.block_parts)

    def _group(self, most: int | None) -> int:
        half = max(1, self.num_blocks // 2)
        return half if most is None else min(half, most)

    @property
    def num_pages(self) -> int:
        return self.num_blocks * self.block_pages


class OffloadFailed(Exception):
    """The work on a chunk cannot continue; its request is over, others are not."""


@dataclass
class _HalfDone:
    """A chunk that was begun and is not complete."""

    chunk: Chunk
    step: int
    """The step that began it."""
    forward: Coroutine[torch.Tensor]
    granted: int = 0
    """Work items that may be done, from the first one on."""
    begun: int = 0
    """Work items that were begun."""
    pause: Callable[[], None] = may_not_pause
    """Pauses the forward."""

    def begin_item(self) -> None:
        """Continue with one more work item, once it may be done."""
        while self.begun == self.granted:
            self.pause()
        self.begun += 1


class Offloader:
    """Runs offloaded chunks on one device.

    Args:
        model: computes them.
        state: the device's; a chunk's own KV is in its pages.
        attention: attends to pages on the device and to those of the ring.
        new_kv: makes the pages of the ring, laid out as those of `state`.
        new_loader: makes what fills them.
        shape: sizes of the ring.
        hidden_size: width of what the model gives.
        policy: chooses the pages that chunks attend to.
    """

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        attention: Attention,
        new_kv: KVMaker,
        new_loader: NewLoader,
        shape: RingShape,
        hidden_size: int,
        policy: SparsePolicy | None = None,
    ) -> None:
        self._hidden_size = hidden_size
        self._model = model
        self._state = state
        self._attention = attention
        self._shape = shape
        self._policy: SparsePolicy = Full() if policy is None else policy
        self._layers = {id(kv): number for number, kv in enumerate(state.kv)}
        self.ring_kv = new_kv(replace(state.shape.layer, num_pages=shape.num_pages))
        self._loader = new_loader(self.ring_kv, shape.block_pages)
        self._reader = RingReader(DeviceRing(shape.num_blocks), self._loader)
        self._stored: dict[int, array[int]] = {}
        """Slot -> pages of its request on the tier."""
        self._unseen: dict[int, int] = {}
        """Slot -> pages of a cached prefix, until a chunk has attended to them."""
        self._thread = Background("sluice-offloaded-chunk")
        self._half_done: _HalfDone | None = None
        self._failed: set[int] = set()
        """Slots whose requests cannot continue."""

    @property
    def ring_bytes(self) -> int:
        return kv_bytes([self.ring_kv])

    @property
    def bounds_bytes(self) -> int:
        """Bytes of what the policy keeps of pages."""
        return self._policy.kept_bytes

    @property
    def totals(self) -> LoadTotals:
        """Totals of the blocks that were loaded so far."""
        return self._loader.totals

    @property
    def ring(self) -> DeviceRing[Any]:
        return self._reader.ring

    def open_slots(self, slots: Sequence[int]) -> None:
        """Forget what was kept for these slots: they belong to other requests now."""
        if self._half_done is not None and self._half_done.chunk.slot in slots:
            self._drop()
        for slot in slots:
            if self._stored.pop(slot, None) is not None:
                self._policy.forget(slot)
            self._unseen.pop(slot, None)
            self._failed.discard(slot)

    def run(self, step: int, part: ChunkSlice) -> torch.Tensor | None:
        """Do the work items of a slice.

        Args:
            step: number of the step; names the chunk in reports of its loads, if the slice begins it.

        Returns:
            [R, hidden_size], the hidden states of the tokens before samples, of the last token, if it embeds, and of
            those before targets; None if the slice does not complete its chunk.

        Raises:
            OffloadFailed: the work failed now or before.
        """
        chunk = part.chunk
        stored = self._stored.setdefault(chunk.slot, array("i"))
        stored.extend(part.stored_pages)
        self._unseen.setdefault(chunk.slot, len(stored) if self._policy.wants_keys else 0)
        if chunk.slot in self._failed:
            raise OffloadFailed("the work on this chunk failed before")
        try:
            half_done = self._half_done
            goes_on = half_done is not None and half_done.chunk == chunk and half_done.granted == part.first
            if half_done is None or not goes_on or part.stop == 0:
                half_done = self._begin(step, part, stored[: part.base // self._state.shape.page_size])
            hidden = self._go_on(half_done, part)
            if part.completes and self._policy.wants_keys:
                self._unseen[chunk.slot] = 0
                self._give_keys(part)
        except Exception as error:
            self._failed.add(chunk.slot)
            self._drop()
            raise OffloadFailed(f"{type(error).__name__}: {error}") from error
        return hidden

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        """Return NaN, [R, hidden_size], in the place of what a chunk that failed should have given."""
        rows = part.chunk.num_samples + part.chunk.embeds + len(part.chunk.targets)
        shape = self._state.shape
        return torch.full((rows, self._hidden_size), torch.nan, dtype=shape.dtype, device=shape.device)

    def close(self) -> None:
        """Drop what is half done and load no more. May be called again."""
        try:
            self._drop()
        finally:
            self._thread.close(UNWINDING)
            self._loader.close()

    def _begin(self, step: int, part: ChunkSlice, stored: Sequence[int]) -> _HalfDone:
        """Drop what is half done, and begin a chunk.

        Args:
            stored: numbers on the tier of the pages that the chunk attends to there.
        """
        if part.first:
            raise ValueError(f"work items {part.first} to {part.stop} of {part.chunk} follow on {self._half_done}")
        self._drop()
        shape = self._state.shape
        queue = _same_queue(shape.device)
        context = OffloadedContext(
            slot=part.chunk.slot,
            pages=stored,
            block_pages=self._shape.block_pages,
            group=self._shape.group_of(is_decode=part.is_decode),
            first_position=part.chunk.start,
            num_tokens=part.chunk.length,
            is_decode=part.is_decode,
            items=self._items(part, len(stored)),
            step=step,
            unseen=self._unseen[part.chunk.slot],
            border=min(len(stored), self._border(part)),
        )

        adapters = self._state.adapters.of_tokens(np.array([part.chunk.slot]), np.array([part.chunk.length]))

        @torch.inference_mode()
        def forward(pause: Callable[[], None]) -> torch.Tensor:
            half_done.pause = pause
            with queue:  # CUDA's current stream is a property of the thread
                batch = offloaded_batch(part, shape.page_size, self._state.last_tokens, shape.device, adapters)
                return self._model.forward(batch, self._state.kv, attention)

        half_done = self._half_done = _HalfDone(part.chunk, step, Coroutine(forward, self._thread))
        attention = OffloadedAttention(
            self._attention,
            self._layers,
            self.ring_kv,
            self._reader,
            self._policy,
            context,
            half_done.begin_item,
        )
        return half_done

    def _go_on(self, half_done: _HalfDone, part: ChunkSlice) -> torch.Tensor | None:
        """Do the work items of a slice of the chunk that is half done. Without any, the forward runs only if the policy
        needs queries: the chunk's token may not be sampled yet."""
        forward = half_done.forward
        half_done.granted = part.stop
        if part.stop or not self._policy.foresees:
            forward.resume(inline=part.completes and not forward.has_begun)
        assert forward.is_over == part.completes, f"{part} left {half_done}"
        if not part.completes:
            self._loader.did(half_done.step, part.stop)
            return None
        self._half_done = None
        return forward.result

    def _drop(self) -> None:
        if self._half_done is not None:
            self._half_done.forward.cancel()
            self._half_done = None
        self._reader.abandon()

    def _border(self, part: ChunkSlice) -> int:
        """Return the pages that the policy may select from: of a decoded token, a function of its position."""
        lag = self._shape.decode_lag if part.is_decode else 0
        return max(0, part.chunk.start // self._state.shape.page_size - lag)

    def _items(self, part: ChunkSlice, num_pages: int) -> WorkItems:
        """Return the work items of a chunk that attends to so many pages on the tier."""
        policy, layers, wide = self._policy, len(self._layers), 0
        most = policy.most_pages if part.is_decode else policy.most_prefill_pages
        if most is not None and policy.selects_for(part.chunk.length, is_decode=part.is_decode):
            wide = min(policy.wide_layers, layers)
        blocks = -(-num_pages // self._shape.block_pages)
        wide_groups = self._shape.group_of(is_decode=part.is_decode).items(blocks)
        rest = part.total - wide * (wide_groups + 1)
        return WorkItems(wide, wide_groups, layers - wide, rest // (layers - wide) - 1 if layers > wide else 0)

    def _give_keys(self, part: ChunkSlice) -> None:
        """Give the policy the keys of the pages that the chunk has filled. A page with a wrong draft is filled again by
        a later chunk."""
        size, chunk = self._state.shape.page_size, part.chunk
        pages = range(chunk.start // size, chunk.end // size)
        if not pages:
            return
        places = [part.pages[page - part.base // size] for page in pages]
        for layer, kv in enumerate(self._state.kv):
            k, _ = kv.gather(torch.tensor(places, device=self._state.shape.device))
            self._policy.pages_left(chunk.slot, layer, pages, k)


def offloaded_batch(
    part: ChunkSlice,
    page_size: int,
    last_tokens: LastTokens,
    device: torch.device,
    adapters: Ints32 | None = None,
) -> ForwardBatch:
    """Return the one row of an offloaded chunk as tensors. Its page table and its KV length count from `base`, its
    positions do not.

    Args:
        last_tokens: the token that each slot sampled last.
        adapters: [N] the slot of each token's adapter; None if it has none.
    """

    def to_device(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    chunk = part.chunk
    positions = np.arange(chunk.start, chunk.end, dtype=np.int64)
    local = positions - part.base
    table = np.array(part.pages, dtype=np.int64)
    is_late = len(chunk.token_ids) < chunk.length
    assert not (is_late and chunk.num_drafts), f"nothing guesses the drafts of {chunk}"
    input_ids = to_device(np.array([*chunk.token_ids, *[UNREAD] * is_late], dtype=np.int64))
    if is_late:
        input_ids[-1:] = last_tokens.read(to_device(np.array([chunk.slot], dtype=np.int64)))
    wanted = max(chunk.num_samples, int(chunk.embeds))
    rows = [*range(chunk.length - wanted, chunk.length), *range(len(chunk.targets))]
    return ForwardBatch(
        input_ids=input_ids,
        positions=to_device(positions),
        kv_slots=to_device(table[local // page_size] * page_size + local % page_size),
        page_table=to_device(table.astype(np.int32))[None],
        q_starts=to_device(np.array([0, chunk.length], dtype=np.int32)),
        kv_lens=to_device(np.array([chunk.end - part.base], dtype=np.int32)),
        logit_rows=to_device(np.array(rows, dtype=np.int64)),
        q_lens=(chunk.length,),
        kv_lens_host=(chunk.end - part.base,),
        num_decodes=int(chunk.length == 1),
        adapters=None if adapters is None else to_device(adapters),
    )


def _same_queue(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which another thread's work goes to the queue that this thread's work goes to."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device))
