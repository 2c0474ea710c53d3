"""Attention of one offloaded chunk: groups of blocks from the ring, then what is on the device, merged.

    a layer    | group | group | ... | pages on the device, the chunk's own among them |
    seen       |   all of it, from every query  |  causal                              |

Each part is one call of an ordinary backend, and one unit of work; `merge.py` makes one result of them, in float32 at
least. Between two units the chunk may be put down and taken up in a later step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from sluice.attention.band import attend_band
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.merge import merge_states
from sluice.attention.spec import AttentionSpec
from sluice.runner.offload.loaders import BlockLoad
from sluice.runner.offload.pace import Pace
from sluice.runner.offload.reader import Arrived, RingReader
from sluice.runner.offload.sparse import SparsePolicy


@dataclass(frozen=True, slots=True)
class OffloadedContext:
    """What lies beneath the device of a chunk's context."""

    slot: int
    pages: Sequence[int]
    """Numbers on the tier, of the context's first pages; all full."""
    block_pages: int
    """Pages of a block, the last one's excepted."""
    first_position: int
    """Of the chunk itself."""
    is_decode: bool
    """The chunk is a generated token: the policy chooses what it attends to."""
    groups: int
    """Calls of the backend that are planned for these in each layer."""

    @property
    def num_blocks(self) -> int:
        return -(-len(self.pages) // self.block_pages)

    def load(self, layer: int, block: int) -> BlockLoad:
        first = block * self.block_pages
        return BlockLoad(layer, self.pages[first : first + self.block_pages], block)


class OffloadedAttention(Attention):
    """Attention for the one row of an offloaded chunk.

    Args:
        inner: attends to pages on the device and to those of the ring.
        layers: number of each layer, by the id of its pages on the device.
        ring: pages of the ring, of no layer in particular.
        reader: brings blocks there.
        group_blocks: blocks attended to in one call.
        pace: asked before each unit of work, and for each block.
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
        pace: Pace,
    ) -> None:
        self._inner = inner
        self._layers = layers
        self._ring = ring
        self._reader = reader
        self._policy = policy
        self._context = context
        self._group_blocks = group_blocks
        self._pace = pace
        if policy.foresees:
            reader.expect(load for layer in range(len(layers)) for load in self._loads(layer, None))

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend as `Attention.attend`.

        Raises:
            Exception: a block could not be read.
        """
        layer, context = self._layers[id(kv)], self._context
        compute = torch.float64 if q.dtype == torch.float64 else torch.float32
        selected = self._selected(layer, None if self._policy.foresees else q)
        if not self._policy.foresees:
            self._reader.expect(context.load(layer, block) for block in selected)
        state: tuple[torch.Tensor, torch.Tensor] | None = None
        earlier = replace(spec, causal=False)  # every query sees all keys of the ring
        blocks = iter(selected)
        for _ in range(context.groups):
            self._pace.begin_unit()
            count = len(list(islice(blocks, self._group_blocks)))
            if not count:
                continue
            group = [self._next() for _ in range(count)]
            if spec.window is None:
                out, lse = self._inner.attend(q, self._ring, self._batch_of(group, q), earlier, need_lse=True)
                assert lse is not None
                state = merged(state, out.to(compute), lse)
            else:
                for block in group:
                    state = merged(state, *self._attend_band(q, block, spec))
            self._reader.release(group)
        assert next(blocks, None) is None, f"{len(selected)} blocks selected, {context.groups} groups planned"
        self._pace.begin_unit()
        out, own_lse = self._inner.attend(q, kv, batch, spec, need_lse=need_lse or state is not None)
        if state is None:
            return out, own_lse
        assert own_lse is not None
        whole, lse = merge_states(*state, out.to(compute), own_lse)
        return whole.to(out.dtype), lse if need_lse else None

    def _next(self) -> Arrived:
        """The next block of the ring, once it has come."""
        self._pace.wait_until(self._reader.has_next)
        return self._reader.next()

    def _selected(self, layer: int, q: torch.Tensor | None) -> Sequence[int]:
        context = self._context
        if not context.is_decode and not self._policy.supports_prefill:
            return range(context.num_blocks)
        return self._policy.select(context.slot, layer, context.num_blocks, q)

    def _loads(self, layer: int, q: torch.Tensor | None) -> Iterator[BlockLoad]:
        return (self._context.load(layer, block) for block in self._selected(layer, q))

    def _places(self, group: Sequence[Arrived]) -> list[int]:
        """The ring's pages that hold a group."""
        size = self._context.block_pages
        return [arrived.slot * size + at for arrived in group for at in range(len(arrived.load.pages))]

    def _batch_of(self, group: Sequence[Arrived], q: torch.Tensor) -> ForwardBatch:
        """The chunk's queries against the keys of a group."""
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

    def _attend_band(self, q: torch.Tensor, block: Arrived, spec: AttentionSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend to a block of whose keys some queries see only the later ones."""
        context = self._context
        first_key = block.load.block * context.block_pages * self._ring.page_size
        k, v = self._ring.gather(torch.tensor(self._places([block]), device=q.device))
        return attend_band(q, k.flatten(0, 1), v.flatten(0, 1), spec, distance=context.first_position - first_key)


State = tuple[torch.Tensor, torch.Tensor]


def merged(state: State | None, out: torch.Tensor, lse: torch.Tensor) -> State:
    """The state of what was attended to so far, and of one more part."""
    return (out, lse) if state is None else merge_states(*state, out, lse)
