"""Attention of one offloaded chunk: groups of blocks from the ring, then what is on the device, merged.

    a layer    | group | group | ... | pages on the device, the chunk's own among them |
    seen       |   all of it, from every query  |  causal                              |

Each of these is one work item and one call of an ordinary backend. `merge.py` makes one result of them, in float32 at
least. Between two work items the forward may pause until a later step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch

from sluice.attention.band import attend_band
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.merge import Partials
from sluice.attention.spec import AttentionSpec
from sluice.runner.offload.loaders import BlockLoad
from sluice.runner.offload.reader import LoadedBlock, RingReader
from sluice.runner.offload.sparse import SparsePolicy
from sluice.types import Group, WorkItems


@dataclass(frozen=True, slots=True)
class OffloadedContext:
    """The part of a chunk's context that is on the tier."""

    slot: int
    pages: Sequence[int]
    """Numbers on the tier of the context's first pages, which are full."""
    block_pages: int
    """Pages of a block; the last one may have fewer."""
    group: Group
    """What one work item attends to."""
    first_position: int
    """Position of the chunk's first token."""
    num_tokens: int
    """Tokens of the chunk."""
    is_decode: bool
    """The chunk is a generated token: the policy chooses what it attends to."""
    items: WorkItems
    """Work items that are planned."""
    step: int = 0
    """The step that began the chunk."""
    border: int | None = None
    """Pages at the beginning that the policy selects from, and the others are attended to; None: all."""
    unseen: int = 0
    """Pages at the beginning whose keys the policy has not been given, although it wants them."""

    def loads(self, layer: int, places: Sequence[int]) -> Iterator[BlockLoad]:
        """Return the loads of the pages that are attended to in a layer, with the work items that each makes ready.

        Behind the layer's last block come its remaining work items, which load nothing.
        """
        assert places, f"nothing is attended to in layer {layer} of {self}"
        begin = self.items.before(layer)
        firsts = range(0, len(places), self.block_pages)
        for count, first in enumerate(firsts, start=1):
            ready = 0
            if count == len(firsts):
                ready = self.items.before(layer + 1)
            elif count % self.group.blocks == 0:
                ready = begin + self.group.items(count)
            some = places[first : first + self.block_pages]
            is_run = some[-1] - some[0] == len(some) - 1
            pages = self.pages[some[0] : some[-1] + 1] if is_run else [self.pages[place] for place in some]
            yield BlockLoad(layer, pages, some, self.step, ready)


class InRing(NamedTuple):
    """A page of the ring, and the place in the context of what it holds."""

    page: int
    place: int


class OffloadedAttention(Attention):
    """Attention for the one row of an offloaded chunk.

    Args:
        inner: attends to pages on the device and to those of the ring.
        layers: number of each layer, by the id of its pages on the device.
        ring: pages of the ring, which belong to no layer.
        reader: brings blocks there.
        policy: chooses the pages.
        context: what is on the tier.
        begin_item: called before each work item; returns when it may be done.
    """

    def __init__(
        self,
        inner: Attention,
        layers: Mapping[int, int],
        ring: PagedKV,
        reader: RingReader[Any, Any],
        policy: SparsePolicy,
        context: OffloadedContext,
        begin_item: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._layers = layers
        self._ring = ring
        self._reader = reader
        self._policy = policy
        self._context = context
        self._begin_item = begin_item
        self._batches: dict[tuple[int, ...], ForwardBatch] = {}
        """Pages of the ring -> the batch that attends to them: groups fill the same buffers over and over."""
        if policy.foresees and context.pages:
            reader.expect(
                load for layer in range(len(layers)) for load in self._loads(layer, self._select(layer, None))
            )

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer, context = self._layers[id(kv)], self._context
        compute = torch.float64 if q.dtype == torch.float64 else torch.float32
        selected: Sequence[int] = ()
        if context.pages:
            selected = self._select(layer, None if self._policy.foresees else q)
        if not self._policy.foresees and context.pages:
            self._reader.expect(self._loads(layer, selected))
        partials = Partials()
        earlier = replace(spec, causal=False)  # every query sees all keys of the ring
        left = -(-len(selected) // context.block_pages)
        for _ in range(0, context.items.groups_of(layer), context.group.parts):
            self._begin_item()
            count = min(left, context.group.blocks)
            left -= count
            group = [self._reader.next() for _ in range(count)]
            self._give_unseen(layer, group)
            for part in range(context.group.parts):
                if part:
                    self._begin_item()
                pages = self._places(group, part)
                if not pages:
                    continue  # the last block has fewer, or there is none
                if spec.window is None:
                    out, lse = self._inner.attend(q, self._ring, self._batch_of(pages, q), earlier, need_lse=True)
                    assert lse is not None
                    partials.add(out.to(compute), lse)
                else:
                    self._attend_band(q, pages, spec, partials)
            if group:
                self._reader.release(group)
        assert not left, f"{len(selected)} pages selected, {context.items} planned"
        self._begin_item()
        out, own_lse = self._inner.attend(q, kv, batch, spec, need_lse=need_lse or len(partials) > 0)
        if not partials:
            return out, own_lse
        assert own_lse is not None
        partials.add(out.to(compute), own_lse)
        whole, lse = partials.merged()
        return whole.to(out.dtype), lse if need_lse else None

    def _select(self, layer: int, q: torch.Tensor | None) -> Sequence[int]:
        """Return the pages that the chunk attends to in a layer."""
        context, policy = self._context, self._policy
        selects = policy.selects_for(context.num_tokens, is_decode=context.is_decode)
        if layer < policy.wide_layers or not selects:
            return range(len(context.pages))
        border = len(context.pages) if context.border is None else context.border
        selected = policy.select(context.slot, layer, border, q) if border else ()
        return (*selected, *range(border, len(context.pages)))

    def _give_unseen(self, layer: int, group: Sequence[LoadedBlock]) -> None:
        """Give the policy the keys of pages of a cached prefix."""
        for block in group:
            count = bisect_left(block.load.places, self._context.unseen)
            if count:
                first = block.buffer * self._context.block_pages
                pages = torch.arange(first, first + count, device=self._ring.k.device)
                self._policy.pages_left(
                    self._context.slot, layer, block.load.places[:count], self._ring.gather(pages)[0]
                )

    def _loads(self, layer: int, selected: Sequence[int]) -> Iterator[BlockLoad]:
        return self._context.loads(layer, selected)

    def _places(self, group: Sequence[LoadedBlock], part: int) -> list[InRing]:
        """Return the pages of a part of a group."""
        size, parts = self._context.block_pages, self._context.group.parts
        first, end = part * size // parts, (part + 1) * size // parts
        return [
            InRing(block.buffer * size + at, place)
            for block in group
            for at, place in enumerate(block.load.places[first:end], start=first)
        ]

    def _batch_of(self, places: Sequence[InRing], q: torch.Tensor) -> ForwardBatch:
        """Return the chunk's queries against the keys of some pages as a batch of one row."""
        pages, tokens, device = tuple([each.page for each in places]), q.shape[0], q.device
        known = self._batches.get(pages)
        if known is not None:
            return known
        keys = len(pages) * self._ring.page_size
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        batch = self._batches[pages] = ForwardBatch(
            input_ids=nothing,
            positions=nothing,
            kv_slots=nothing,
            page_table=torch.tensor([pages], dtype=torch.int32, device=device),
            q_starts=torch.tensor([0, tokens], dtype=torch.int32, device=device),
            kv_lens=torch.tensor([keys], dtype=torch.int32, device=device),
            logit_rows=nothing,
            q_lens=(tokens,),
            kv_lens_host=(keys,),
            num_decodes=int(tokens == 1),
        )
        return batch

    def _attend_band(self, q: torch.Tensor, places: Sequence[InRing], spec: AttentionSpec, partials: Partials) -> None:
        """Attend to pages of whose keys some queries see only the later ones, run by run of consecutive pages."""
        context, size = self._context, self._ring.page_size
        for run, pages in groupby(places, key=lambda each: each.place - each.page):
            in_ring = [each.page for each in pages]
            k, v = self._ring.gather(torch.tensor(in_ring, device=q.device))
            distance = context.first_position - (in_ring[0] + run) * size
            partials.add(*attend_band(q, k.flatten(0, 1), v.flatten(0, 1), spec, distance=distance))
