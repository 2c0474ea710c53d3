"""Attention by the Triton kernels."""

from __future__ import annotations

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.spec import AttentionSpec
from sluice.attention.triton.call import checked_call
from sluice.attention.triton.decode import decode
from sluice.attention.triton.extend import extend
from sluice.attention.triton.tiles import Arch, DecodeTiles, ExtendTiles, decode_tiles, extend_tiles


class TritonAttention(Attention):
    """Attention over `TritonKV` or `LayerKV`, of bfloat16, float16 and float32 queries with heads of up to 256.

    A call reads no value back from the device and keeps nothing: it may be captured in a CUDA graph and replayed over
    other `page_table`, `q_starts` and `kv_lens`. Rows of length 0, which pad a graph, read no page and give zeros.

    Args:
        arch: chooses block sizes.
        extend_with, decode_with: block sizes instead of the table's.
    """

    def __init__(
        self, arch: Arch, *, extend_with: ExtendTiles | None = None, decode_with: DecodeTiles | None = None
    ) -> None:
        self._arch = arch
        self._extend_with = extend_with
        self._decode_with = decode_with

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        call = checked_call(q, kv, batch, spec, need_lse=need_lse, has_fp8=self._arch.has_fp8)
        sizes = (self._arch, call.head_pad, q.element_size())
        decode(call, self._decode_with or decode_tiles(*sizes), self._arch)
        extend(call, self._extend_with or extend_tiles(*sizes))
        return call.out, call.lse if need_lse else None
