"""Attention by the compiled CPU kernels: one call for a mixed batch, straight from the pages.

Queries and keys are multiplied in their own dtype and summed in float32, as is everything after; weights are rounded
to the dtype of the values before they are multiplied. Over pages of int8, queries and weights are rounded to sixteen
bits, and products are summed exactly (`kernels/cpu/int8_attention.h`). A query's result depends on its position and
keys alone, not on the rest of the batch or the number of threads (`kernels/cpu/plan.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import NamedTuple

import torch

from sluice.attention.backend import AttentionBackend, dtype_names
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.int8 import PackedInt8KV
from sluice.attention.packed import GROUP, STEPS, PackedKV, dense_heads
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.kernels.cpu.abi import AttentionCall
from sluice.kernels.cpu.library import MAX_HEAD_DIM, Kernels

MAX_SCORES = 2**25
"""Pairs of a query and a key, times heads, that one call computes: a tenth of a second or so, a few without AVX2."""


class RowRange(NamedTuple):
    """The work of one call: the rows from `row` on, or some queries of that row alone."""

    row: int
    rows: int
    start: int
    """The first of its queries, counted from the step's first."""
    q_starts: torch.Tensor
    """[rows + 1] int32, counted from `start`"""
    kv_lens: torch.Tensor
    """[rows] int32, as seen by each row's last query"""


class NativeAttention(Attention):
    """Attention by the compiled kernels over `PackedKV` or `PackedInt8KV`.

    Args:
        kernels: compute.
        tick: called after each part of the work, so that a long layer gives signs of life.
        max_scores: bound on a part's work, as `MAX_SCORES`.
    """

    def __init__(self, kernels: Kernels, tick: Callable[[], None] = lambda: None, max_scores: int = MAX_SCORES) -> None:
        self._kernels = kernels
        self._tick = tick
        self._max_scores = max_scores

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not isinstance(kv, PackedKV | PackedInt8KV):
            raise TypeError(f"native attention reads PackedKV or PackedInt8KV, got {type(kv).__name__}")
        if q.dtype not in kv.dtypes:
            raise TypeError(f"queries must be {dtype_names(tuple(kv.dtypes))}, as the pages want, got {q.dtype}")
        tokens, heads, head_dim = q.shape
        q = dense_heads(q)
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype)
        lse = torch.empty((tokens, heads), dtype=torch.float32) if need_lse else None
        for part in self._parts(batch, spec):
            self._kernels.attention(
                AttentionCall(
                    q=_at(q, part.start),
                    out=_at(out, part.start),
                    lse=None if lse is None else _at(lse, part.start),
                    k=kv.k.data_ptr(),
                    v=kv.v.data_ptr(),
                    page_table=_at(batch.page_table, part.row),
                    q_starts=part.q_starts.data_ptr(),
                    kv_lens=part.kv_lens.data_ptr(),
                    q_stride=q.stride(0),
                    table_stride=batch.page_table.stride(0),
                    rows=part.rows,
                    heads=heads,
                    kv_heads=kv.kv_heads,
                    head_dim=head_dim,
                    page_size=kv.page_size,
                    is_bf16=q.dtype == torch.bfloat16,
                    is_int8=kv.k.dtype == torch.int8,
                    causal=spec.causal,
                    window=spec.window or 0,
                    block_size=spec.block_size or 1,
                    scale=spec.scale * spec.k_scale,
                    softcap=spec.softcap or 0.0,
                    v_scale=spec.v_scale,
                )
            )
            self._tick()
        return out, lse

    def _parts(self, batch: ForwardBatch, spec: AttentionSpec) -> Iterator[RowRange]:
        """Yield the whole batch, or its decodes and then each prompt in pieces. Only causal attention can be cut."""
        heads = spec.num_heads
        lens = list(zip(batch.q_lens, batch.kv_lens_host, strict=True))
        if not spec.causal or sum(q_len * kv_len for q_len, kv_len in lens) * heads <= self._max_scores:
            yield RowRange(0, len(lens), 0, batch.q_starts, batch.kv_lens)
            return
        start = batch.num_decodes
        if start:
            yield RowRange(0, start, 0, batch.q_starts, batch.kv_lens)
        for row, (q_len, kv_len) in list(enumerate(lens))[start:]:
            step = max(1, self._max_scores // (heads * max(kv_len, 1)))
            origin = position = kv_len - q_len
            while position < kv_len:
                # A part ends with a block, as its last query sees all of that.
                block = spec.block_size or 1
                end = min(kv_len, max(spec.end_of_block(position), (position + step) // block * block))
                ends = torch.tensor([0, end - position], dtype=torch.int32), torch.tensor([end], dtype=torch.int32)
                yield RowRange(row, 1, start + position - origin, *ends)
                position = end
            start += q_len


def _at(tensor: torch.Tensor, row: int) -> int:
    """Return the address of a row."""
    return tensor.data_ptr() + row * tensor.stride(0) * tensor.element_size()


class NativeBackend(AttentionBackend):
    """The compiled kernels, on a CPU."""

    name = "native"
    layout = PackedKV.layout
    kv_dtypes = MappingProxyType({"int8": torch.int8})
    capturable_on = "cpu"
    needs_kernels = True

    def default_reason(self, device: torch.device, cpu_kernels: str) -> str | None:
        return f"--cpu-kernels {cpu_kernels}" if device.type == "cpu" else None

    def missing(self, device: torch.device, cpu_kernels: str) -> str | None:
        if cpu_kernels == "torch":
            return "it needs the compiled CPU kernels; use --attention-backend reference"
        return None

    def supports(self, spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
        if spec.dtype not in STEPS:
            return f"they take {dtype_names(tuple(STEPS))}, the model is {dtype_names((spec.dtype,))}"
        if spec.head_dim % GROUP or spec.head_dim > MAX_HEAD_DIM:
            return f"head sizes must be a multiple of {GROUP} up to {MAX_HEAD_DIM}, got {spec.head_dim}"
        if page_size % GROUP:
            return f"they take pages of a multiple of {GROUP} tokens, --page-size is {page_size}"
        return None

    def new_kv(self, shape: KVShape, kernels: Kernels | None) -> PackedKV | PackedInt8KV:
        assert kernels is not None, "packed pages without kernels"
        if shape.dtype == torch.int8:
            return PackedInt8KV.empty(kernels, shape)
        return PackedKV.empty(kernels, shape)

    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        assert kernels is not None, "native attention without kernels"
        return NativeAttention(kernels, tick)
