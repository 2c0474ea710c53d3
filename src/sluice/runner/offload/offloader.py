"""Streamer: runs the parts of offloaded chunks, and keeps what is half done between steps.

One chunk is half done at most: the ring and its loads are its own. A part that begins another chunk drops it, which
happens when its request has ended or was sent back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from sluice.attention.base import Attention, PagedKV
from sluice.device.background import Background
from sluice.device.memory import kv_bytes
from sluice.kv.ring import DeviceRing
from sluice.runner.device_state import DeviceState, KVMaker
from sluice.runner.forwards import Model
from sluice.runner.offload.attention import OffloadedAttention, OffloadedContext
from sluice.runner.offload.coroutine import UNWINDING, Coroutine
from sluice.runner.offload.inputs import offloaded_batch
from sluice.runner.offload.loaders import Loader, LoadTotals
from sluice.runner.offload.pace import ALONE_PATIENCE, BYTES_PER_SECOND, PATIENCE, Pace
from sluice.runner.offload.reader import RingReader
from sluice.runner.offload.sparse import Full, SparsePolicy
from sluice.types import Chunk, ChunkSlice

NewLoader = Callable[[PagedKV, int], Loader[Any, Any]]
"""From the ring's pages, and how many of them a slot has."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """Sizes of the ring."""

    num_blocks: int
    """Slots."""
    block_pages: int
    """Pages of a slot."""
    most_blocks: int | None = None
    """Attended to in one call; None: as many as there is room for beside those that load."""

    @property
    def group_blocks(self) -> int:
        """Blocks attended to in one call: half of the ring at most, while the rest loads. A ring of one waits."""
        half = max(1, self.num_blocks // 2)
        return half if self.most_blocks is None else min(half, self.most_blocks)

    @property
    def num_pages(self) -> int:
        return self.num_blocks * self.block_pages


@dataclass
class _HalfDone:
    """A chunk that was begun."""

    chunk: Chunk
    call: Coroutine[torch.Tensor]
    pace: Pace


class SliceDone(NamedTuple):
    """What came of a part."""

    hidden: torch.Tensor | None
    """[R, hidden_size], the hidden states of the token that samples, if one does, and of those before targets; None if
    the part does not complete its chunk."""
    unfinished: int
    """Units of it, and of parts before it, that are not done."""


class OffloadFailed(Exception):
    """The work on a chunk cannot go on; its request is over, others are not."""


class Offloader:
    """Offloaded chunks on one device.

    Args:
        model: computes them.
        state: the device's; a chunk's own KV is in its pages.
        attention: attends to pages on the device and to those of the ring.
        new_kv: makes the pages of the ring, laid out as those of `state`.
        new_loader: makes who fills them.
        shape: of the ring.
        hidden_size: of what the model gives.
        policy: what chunks attend to.
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
        self._rows: dict[int, list[int]] = {}
        self._thread = Background("sluice-offloaded-chunk")
        self._half_done: _HalfDone | None = None
        self._failed: set[int] = set()

    @property
    def ring_bytes(self) -> int:
        """That the ring takes."""
        return kv_bytes([self.ring_kv])

    @property
    def totals(self) -> LoadTotals:
        """What passed through the ring so far."""
        return self._loader.totals

    @property
    def ring(self) -> DeviceRing[Any]:
        return self._reader.ring

    def open_slots(self, slots: Sequence[int]) -> None:
        """The slots are other requests' now."""
        for slot in slots:
            if self._rows.pop(slot, None) is not None:
                self._policy.forget(slot)
            self._failed.discard(slot)

    def run(self, part: ChunkSlice, *, alone: bool = True) -> SliceDone:
        """Do the units of a part, and those that are owed, as far as what they read comes in time; all of them, if the
        part completes its chunk.

        Args:
            alone: nobody waits for the step but the part's own request.

        Raises:
            StreamFailed: a page could not be read, or the chunk failed before.
        """
        chunk = part.chunk
        row = self._rows.setdefault(chunk.slot, [])
        row.extend(part.stored_pages)
        if chunk.slot in self._failed:
            raise OffloadFailed("the work on this chunk failed before")
        try:
            if part.first == 0:
                self._drop()
                self._begin(part, tuple(row[: part.base // self._state.shape.page_size]))
            done = self._go_on(part, alone)
        except Exception as error:
            self._failed.add(chunk.slot)
            self._drop()
            raise OffloadFailed(f"{type(error).__name__}: {error}") from error
        if part.completes and self._policy.wants_keys:
            self._tell_policy(part)
        return done

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        """[R, hidden_size] of NaN, in the place of what a chunk that failed should have given."""
        rows = part.chunk.samples + len(part.chunk.targets)
        shape = self._state.shape
        return torch.full((rows, self._hidden_size), torch.nan, dtype=shape.dtype, device=shape.device)

    def close(self) -> None:
        """Drop what is half done and load no more. Twice is once."""
        try:
            self._drop()
        finally:
            self._thread.close(UNWINDING)
            self._loader.close()

    def _begin(self, part: ChunkSlice, stored: tuple[int, ...]) -> None:
        shape = self._state.shape
        batch = offloaded_batch(part, shape.page_size, self._state.last_tokens, shape.device)
        queue = _same_queue(shape.device)
        context = OffloadedContext(
            slot=part.chunk.slot,
            pages=stored,
            block_pages=self._shape.block_pages,
            first_position=part.chunk.start,
            is_decode=part.is_decode,
            groups=part.total // len(self._layers) - 1,
        )

        pace = Pace()

        @torch.inference_mode()
        def forward(pause: Callable[[], None]) -> torch.Tensor:
            pace.pause = pause
            attention = OffloadedAttention(
                self._attention,
                self._layers,
                self.ring_kv,
                self._reader,
                self._policy,
                context,
                self._shape.group_blocks,
                pace,
            )
            with queue:  # which queue a thread's work goes to is the thread's own affair
                return self._model.forward(batch, self._state.kv, attention)

        self._half_done = _HalfDone(part.chunk, Coroutine(forward, self._thread), pace)

    def _go_on(self, part: ChunkSlice, alone: bool) -> SliceDone:
        half_done = self._half_done
        if half_done is None or half_done.chunk != part.chunk or half_done.pace.granted != part.first:
            raise ValueError(f"units {part.first} to {part.stop} of {part.chunk} follow on {half_done}")
        call, pace = half_done.call, half_done.pace
        pace.grant(part.stop - part.first, self._patience(part, alone))
        call.resume(inline=part.first == 0 and part.completes)
        if not part.completes:
            assert not call.is_over, f"{part} completed its chunk"
            return SliceDone(None, pace.unfinished)
        assert call.is_over and not pace.unfinished, f"{part} left {pace.unfinished} units"
        self._half_done = None
        return SliceDone(call.result, 0)

    def _patience(self, part: ChunkSlice, alone: bool) -> float:
        """Seconds that a part may wait for what it reads."""
        if part.completes:
            return math.inf
        if alone:
            return ALONE_PATIENCE
        of_group = self._shape.group_blocks * self.ring_bytes / self._shape.num_blocks
        return PATIENCE + (part.stop - part.first) * of_group / BYTES_PER_SECOND

    def _drop(self) -> None:
        if self._half_done is not None:
            self._half_done.call.cancel()
            self._half_done = None
        self._reader.abandon()

    def _tell_policy(self, part: ChunkSlice) -> None:
        size, chunk = self._state.shape.page_size, part.chunk
        for page in range(chunk.start // size, chunk.end // size):
            place = torch.tensor(part.pages[page - part.base // size], device=self._state.shape.device)
            for layer, kv in enumerate(self._state.kv):
                self._policy.page_left(chunk.slot, layer, page, kv.gather(place)[0])


def _same_queue(device: torch.device) -> AbstractContextManager[object]:
    """The queue of the device that the caller's work goes to."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device))
