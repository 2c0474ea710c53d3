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

import torch

from sluice.attention.band import attend_band
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.merge import merge_states
from sluice.attention.spec import AttentionSpec
from sluice.runner.offload.loaders import BlockLoad
from sluice.runner.offload.reader import LoadedBlock, RingReader
from sluice.runner.offload.sparse import SparsePolicy
from sluice.types import WorkItems


@dataclass(frozen=True, slots=True)
class OffloadedContext:
    """The part of a chunk's context that lies on the tier."""

    slot: int
    pages: Sequence[int]
    """Numbers on the tier of the context's first pages, which are full."""
    block_pages: int
    """Pages of a block; the last one may have fewer."""
    first_position: int
    """Position of the chunk's first token."""
    is_decode: bool
    """The chunk is a generated token: the policy chooses what it attends to."""
    items: WorkItems
    """Those that are planned."""
    step: int = 0
    """The step that began the chunk."""
    unseen: int = 0
    """Pages at the beginning whose keys the policy has not been given, although it wants them."""

    def loads(self, layer: int, places: Sequence[int], group_blocks: int) -> Iterator[BlockLoad]:
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
            elif count % group_blocks == 0:
                ready = begin + count // group_blocks
            some = places[first : first + self.block_pages]
            is_run = some[-1] - some[0] == len(some) - 1
            pages = self.pages[some[0] : some[-1] + 1] if is_run else [self.pages[place] for place in some]
            yield BlockLoad(layer, pages, some, self.step, ready)


class OffloadedAttention(Attention):
    """Attention for the one row of an offloaded chunk.

    Args:
        inner: attends to pages on the device and to those of the ring.
        layers: number of each layer, by the id of its pages on the device.
        ring: pages of the ring, which belong to no layer.
        reader: brings blocks there.
        policy: chooses the pages.
        context: what lies on the tier.
        group_blocks: blocks attended to in one call.
        begin_item: called before each work item; returns when it may be done.
    """

    def __init__(
        self,
        inner: Attention,
        layers: Mapping[int, int],
        ring: PagedKV,
        reader: RingReader,
        policy: SparsePolicy,
        context: OffloadedContext,
        group_blocks: int,
        begin_item: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._layers = layers
        self._ring = ring
        self._reader = reader
        self._policy = policy
        self._context = context
        self._group_blocks = group_blocks
        self._begin_item = begin_item
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
        state: tuple[torch.Tensor, torch.Tensor] | None = None
        earlier = replace(spec, causal=False)  # every query sees all keys of the ring
        left = -(-len(selected) // context.block_pages)
        for _ in range(context.items.groups_of(layer)):
            self._begin_item()
            count = min(left, self._group_blocks)
            if not count:
                continue
            left -= count
            group = [self._reader.next() for _ in range(count)]
            self._give_unseen(layer, group)
            if spec.window is None:
                out, lse = self._inner.attend(q, self._ring, self._batch_of(group, q), earlier, need_lse=True)
                assert lse is not None
                state = merged(state, out.to(compute), lse)
            else:
                for block in group:
                    state = self._attend_band(q, block, spec, state)
            self._reader.release(group)
        assert not left, f"{len(selected)} pages selected, {context.items} planned"
        self._begin_item()
        out, own_lse = self._inner.attend(q, kv, batch, spec, need_lse=need_lse or state is not None)
        if state is None:
            return out, own_lse
        assert own_lse is not None
        whole, lse = merge_states(*state, out.to(compute), own_lse)
        return whole.to(out.dtype), lse if need_lse else None

    def _select(self, layer: int, q: torch.Tensor | None) -> Sequence[int]:
        """Return the pages that the chunk attends to in a layer."""
        context, policy = self._context, self._policy
        if layer < policy.wide_layers or (not context.is_decode and not policy.supports_prefill):
            return range(len(context.pages))
        return policy.select(context.slot, layer, len(context.pages), q)

    def _give_unseen(self, layer: int, group: Sequence[LoadedBlock]) -> None:
        """Give the policy the keys of pages of a cached prefix."""
        for block in group:
            count = bisect_left(block.load.places, self._context.unseen)
            if count:
                places = torch.tensor(self._places([block])[:count], device=self._ring.k.device)
                self._policy.pages_left(
                    self._context.slot, layer, block.load.places[:count], self._ring.gather(places)[0]
                )

    def _loads(self, layer: int, selected: Sequence[int]) -> Iterator[BlockLoad]:
        return self._context.loads(layer, selected, self._group_blocks)

    def _places(self, group: Sequence[LoadedBlock]) -> list[int]:
        """Return the ring's pages that hold a group."""
        size = self._context.block_pages
        return [block.buffer * size + at for block in group for at in range(len(block.load.pages))]

    def _batch_of(self, group: Sequence[LoadedBlock], q: torch.Tensor) -> ForwardBatch:
        """Return the chunk's queries against the keys of a group as a batch of one row."""
        pages, tokens, device = self._places(group), q.shape[0], q.device
        keys = len(pages) * self._ring.page_size
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return ForwardBatch(
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

    def _attend_band(
        self, q: torch.Tensor, block: LoadedBlock, spec: AttentionSpec, state: State | None
    ) -> State | None:
        """Attend to a block of whose keys some queries see only the later ones, run by run of consecutive pages."""
        context, load, size = self._context, block.load, self._ring.page_size
        buffer = self._places([block])
        for run, pages in groupby(zip(load.places, buffer, strict=True), key=lambda pair: pair[0] - pair[1]):
            in_ring = [page for _, page in pages]
            k, v = self._ring.gather(torch.tensor(in_ring, device=q.device))
            distance = context.first_position - (in_ring[0] + run) * size
            state = merged(state, *attend_band(q, k.flatten(0, 1), v.flatten(0, 1), spec, distance=distance))
        return state


State = tuple[torch.Tensor, torch.Tensor]


def merged(state: State | None, out: torch.Tensor, lse: torch.Tensor) -> State:
    """Return the output and log-sum-exp over what was attended to so far and one more part."""
    return (out, lse) if state is None else merge_states(*state, out, lse)
