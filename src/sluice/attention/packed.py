"""Keys and values laid out in the order in which the native kernels multiply them.

Within a page, per KV head: keys in groups of sixteen tokens, values in steps along the tokens. `step` elements of the
summed dimension lie side by side: two of bfloat16, as dot product instructions and AMX take them, one of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from sluice.native.abi import RotateStoreCall
from sluice.native.library import Kernels

GROUP = 16
"""Tokens of a group of keys; a page holds a multiple of it."""
STEPS = {torch.bfloat16: 2, torch.float32: 1}


@dataclass(frozen=True, slots=True)
class PackedKV:
    """Paged keys and values of one layer."""

    k: torch.Tensor
    """[pages, kv_heads, page_size / 16, head_dim / step, 16, step]"""
    v: torch.Tensor
    """[pages, kv_heads, page_size / step, head_dim, step]"""
    kernels: Kernels

    @classmethod
    def empty(
        cls, kernels: Kernels, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> Self:
        """Pages that were never written and may hold anything.

        Args:
            page_size: a multiple of 16.
            head_dim: a multiple of 16.
            dtype: bfloat16 or float32.
        """
        step = STEPS[dtype]
        groups = (pages, kv_heads, page_size // GROUP, head_dim // step, GROUP, step)
        return cls(
            torch.empty(groups, dtype=dtype),
            torch.empty((pages, kv_heads, page_size // step, head_dim, step), dtype=dtype),
            kernels,
        )

    @property
    def page_size(self) -> int:
        return self.k.shape[2] * GROUP

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        return self.v.shape[3]

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """See `PagedKV.store`."""
        k, v = dense_heads(k.to(self.k.dtype)), dense_heads(v.to(self.v.dtype))
        self.kernels.rotate_store(self.store_call(kv_slots, k, v))

    def store_call(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> RotateStoreCall:
        """A call that stores and nothing else; k and v as `dense_heads` makes them, in the dtype of the pages."""
        return RotateStoreCall(
            k=k.data_ptr(),
            v=v.data_ptr(),
            slots=kv_slots.data_ptr(),
            k_pages=self.k.data_ptr(),
            v_pages=self.v.data_ptr(),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            tokens=k.shape[0],
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            page_size=self.page_size,
            is_bf16=self.k.dtype == torch.bfloat16,
        )

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagedKV.gather`."""
        shape = (*pages.shape, self.page_size, self.kv_heads, self.head_dim)
        flat = pages.flatten()
        k = self.k[flat].permute(0, 2, 4, 1, 3, 5)
        v = self.v[flat].permute(0, 2, 4, 1, 3)
        return k.reshape(shape), v.reshape(shape)


def dense_heads(x: torch.Tensor) -> torch.Tensor:
    """x [N, heads, head_dim] with gaps between tokens at most."""
    is_dense = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if is_dense else x.contiguous()
