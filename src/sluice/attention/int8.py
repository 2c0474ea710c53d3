"""Paged keys and values in int8, with a scale for each token and KV head: the definition, and pages for two backends.

A key (or a value) x of one token and one KV head is stored as `round(x * 127 / largest)`, where `largest` is its
largest magnitude, and as the scale `largest / 127` in float32. It stands for their product, which is at most half a
scale away from x. Keys are rotated before that (`hadamard.py`), so that no channel sets the scale of all. What is
stored of a token depends on nothing else, so it is the same however a prompt is cut into chunks.

The scales are in the page, beside what they belong to. So a page is one piece of memory, and whatever copies pages
copies them:

    Int8KV         token, head   |  head_dim int8  | scale |
    PackedInt8KV   head, sixteen tokens            |  16 head_dim int8, as the kernels multiply them  | 16 scales |
                                   keys            [head_dim / 2][16 tokens][2]
                                   values          [16 tokens / 2][head_dim][2]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from sluice.attention.base import LayerKV
from sluice.attention.hadamard import rotated, rotated_back
from sluice.attention.packed import GROUP, STEPS, PackedKV, dense_heads, store_call
from sluice.attention.spec import SCALE_BYTES, KVShape
from sluice.kernels.cpu.abi import RotateStoreCall
from sluice.kernels.cpu.library import Kernels

MOST = 127
TINY = 1e-30
"""Below this magnitude everything is stored as zero: the inverse of the scale would not be finite."""


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., head_dim].

    Returns:
        int8 [..., head_dim], and scales [...] float32. Where x is not finite the scale is not either, and the values
        are 0, so that what is read is NaN.
    """
    x = x.float()
    largest = x.abs().amax(-1)
    is_zero = largest < TINY
    inverse = torch.div(torch.full_like(largest, MOST), largest).masked_fill(is_zero | ~largest.isfinite(), 0.0)
    values = (x * inverse[..., None]).nan_to_num(0.0).round().to(torch.int8)
    return values, (largest / MOST).masked_fill(is_zero, 0.0)


@dataclass(frozen=True, slots=True)
class Int8KV:
    """Paged keys and values of one layer in plain order, each [pages, page_size, kv_heads, head_dim + 4] int8.

    The last four bytes of each head are its scale.
    """

    layout: ClassVar[str] = LayerKV.layout
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def empty(cls, shape: KVShape) -> Self:
        """Return pages that were never written and may hold anything."""
        size = (shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim + SCALE_BYTES)
        return cls(*(torch.empty(size, dtype=torch.int8, device=shape.device) for _ in range(2)))

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        for pages, x in ((self.k, rotated(k.float())), (self.v, v)):
            values, scales = quantized(x)
            pages.flatten(0, 1).index_copy_(0, kv_slots, torch.cat([values, scales[..., None].view(torch.int8)], -1))

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather as `PagedKV.gather`, the values that are stood for, in float32."""
        return rotated_back(_widened(self.k[pages])), _widened(self.v[pages])


def _widened(heads: torch.Tensor) -> torch.Tensor:
    """Return what heads [..., head_dim + 4] stand for: [..., head_dim] float32."""
    values, scales = heads.split((heads.shape[-1] - SCALE_BYTES, SCALE_BYTES), -1)
    return values * scales.contiguous().view(torch.float32)


@dataclass(frozen=True, slots=True)
class PackedInt8KV:
    """Paged keys and values of one layer, in the order of the native kernels.

    Each is [pages, kv_heads, page_size / 16, 16 * (head_dim + 4)] int8: of sixteen tokens the values, then the scales.
    """

    layout: ClassVar[str] = PackedKV.layout
    k: torch.Tensor
    v: torch.Tensor
    kernels: Kernels

    @classmethod
    def empty(cls, kernels: Kernels, shape: KVShape) -> Self:
        """Return pages that were never written and may hold anything.

        Args:
            shape: page size and head size are multiples of 16, the device is a CPU.
        """
        piece = GROUP * (shape.head_dim + SCALE_BYTES)
        size = (shape.num_pages, shape.num_kv_heads, shape.page_size // GROUP, piece)
        return cls(torch.empty(size, dtype=torch.int8), torch.empty(size, dtype=torch.int8), kernels)

    @property
    def page_size(self) -> int:
        return self.k.shape[2] * GROUP

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3] // GROUP - SCALE_BYTES

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        dtype = k.dtype if k.dtype == v.dtype and k.dtype in STEPS else torch.float32
        k, v = dense_heads(k.to(dtype)), dense_heads(v.to(dtype))
        self.kernels.rotate_store(self.store_call(kv_slots, k, v))

    def store_call(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> RotateStoreCall:
        """Return a call that only stores k and v, which are dense (`dense_heads`), of one dtype that kernels take."""
        return store_call(self, kv_slots, k, v, is_int8=True)

    @property
    def dtypes(self) -> Collection[torch.dtype]:
        """Dtypes of queries, keys and values that the kernels compute with beside such pages."""
        return STEPS

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather as `PagedKV.gather`, the values that are stood for, in float32."""
        half, d = GROUP // 2, self.head_dim
        k, k_scales = self._parts(self.k[pages.flatten()])
        v, v_scales = self._parts(self.v[pages.flatten()])
        k = k.unflatten(-1, (d // 2, GROUP, 2)).permute(0, 2, 4, 1, 3, 5).flatten(-2)
        v = v.unflatten(-1, (half, d, 2)).permute(0, 2, 3, 5, 1, 4).flatten(2, 3)
        shape = (*pages.shape, self.page_size, self.kv_heads, d)
        return rotated_back((k * k_scales).reshape(shape)), (v * v_scales).reshape(shape)

    def _parts(self, pieces: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values [pages, kv_heads, groups, 16 head_dim], and scales [pages, groups, 16, kv_heads, 1]."""
        values, scales = pieces.split((GROUP * self.head_dim, GROUP * SCALE_BYTES), -1)
        return values, scales.contiguous().view(torch.float32).permute(0, 2, 3, 1)[..., None]
