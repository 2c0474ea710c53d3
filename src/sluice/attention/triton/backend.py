"""The `AttentionBackend` in Triton: decodes in one call, extends in another."""

from __future__ import annotations

import torch

from sluice.attention.base import ForwardBatch, PagedKV
from sluice.attention.triton.call import checked_call
from sluice.attention.triton.decode import decode
from sluice.attention.triton.extend import extend
from sluice.attention.triton.tiles import Arch, DecodeTiles, ExtendTiles, decode_tiles, extend_tiles


class TritonAttention:
    """Attention over `TritonKV` or `LayerKV`, of bfloat16, float16 and float32 queries with heads of up to 256.

    Nothing is asked of the device and nothing kept between calls: a call may be captured in a CUDA graph and replayed
    over other `page_table`, `q_starts` and `kv_lens`. Of a graph's padded rows the length is 0: they read no page and
    give zeros.

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
        self,
        q: torch.Tensor,
        kv: PagedKV,
        batch: ForwardBatch,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `AttentionBackend.attend`.

        Raises:
            TypeError, ValueError: see `checked_call`.
        """
        call = checked_call(
            q,
            kv,
            batch,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            k_scale=k_scale,
            v_scale=v_scale,
            need_lse=need_lse,
            has_fp8=self._arch.has_fp8,
        )
        sizes = (self._arch, call.head_pad, q.element_size())
        decode(call, self._decode_with or decode_tiles(*sizes), self._arch)
        extend(call, self._extend_with or extend_tiles(*sizes))
        return call.out, call.lse if need_lse else None
