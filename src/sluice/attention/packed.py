"""Paged keys and values in the order in which the native kernels multiply them.

A page holds, for each KV head, keys in groups of sixteen tokens and values in steps along the tokens. `step` elements
of the summed dimension are side by side: two of bfloat16, as dot product instructions and AMX take them; one of
float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import torch

from sluice.attention.spec import KVShape
from sluice.kernels.cpu.abi import RotateStoreCall
from sluice.kernels.cpu.library import Kernels

GROUP = 16
"""Tokens of a group of keys; a page holds a multiple of it."""
STEPS = {torch.bfloat16: 2, torch.float32: 1}


@dataclass(frozen=True, slots=True)
class PackedKV:
    """Paged keys and values of one layer, in the order of the native kernels."""

    layout: ClassVar[str] = f"packed in groups of {GROUP}"
    k: torch.Tensor
    """[pages, kv_heads, page_size / 16, head_dim / step, 16, step]"""
    v: torch.Tensor
    """[pages, kv_heads, page_size / step, head_dim, step]"""
    kernels: Kernels

    @classmethod
    def empty(cls, kernels: Kernels, shape: KVShape) -> Self:
        """Return pages that were never written and may hold anything.

        Args:
            shape: page size and head size are multiples of 16, the dtype is bfloat16 or float32, the device a CPU.
        """
        step = STEPS[shape.dtype]
        heads = (shape.num_pages, shape.num_kv_heads)
        k = torch.empty((*heads, shape.page_size // GROUP, shape.head_dim // step, GROUP, step), dtype=shape.dtype)
        v = torch.empty((*heads, shape.page_size // step, shape.head_dim, step), dtype=shape.dtype)
        return cls(k, v, kernels)

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
        k, v = dense_heads(k.to(self.k.dtype)), dense_heads(v.to(self.v.dtype))
        self.kernels.rotate_store(self.store_call(kv_slots, k, v))

    def store_call(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> RotateStoreCall:
        """Return a call that only stores k and v, which are dense (`dense_heads`) and of the pages' dtype."""
        return store_call(self, kv_slots, k, v)

    @property
    def dtypes(self) -> Collection[torch.dtype]:
        """Dtypes of queries, keys and values that the kernels compute with beside such pages."""
        return (self.k.dtype,)

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*pages.shape, self.page_size, self.kv_heads, self.head_dim)
        flat = pages.flatten()
        k = self.k[flat].permute(0, 2, 4, 1, 3, 5)
        v = self.v[flat].permute(0, 2, 4, 1, 3)
        return k.reshape(shape), v.reshape(shape)


class NativePages(Protocol):
    """Pages of one layer that the kernels store to."""

    @property
    def k(self) -> torch.Tensor: ...

    @property
    def v(self) -> torch.Tensor: ...

    @property
    def page_size(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


def store_call(
    pages: NativePages, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_int8: bool = False
) -> RotateStoreCall:
    """Return a call that only stores k and v, which are dense (`dense_heads`) and of one dtype."""
    return RotateStoreCall(
        k=k.data_ptr(),
        v=v.data_ptr(),
        slots=kv_slots.data_ptr(),
        k_pages=pages.k.data_ptr(),
        v_pages=pages.v.data_ptr(),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        tokens=k.shape[0],
        kv_heads=pages.kv_heads,
        head_dim=pages.head_dim,
        page_size=pages.page_size,
        is_bf16=k.dtype == torch.bfloat16,
        is_int8=is_int8,
    )


def dense_heads(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, heads, head_dim] with no gaps except between tokens; copied if it has others."""
    is_dense = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if is_dense else x.contiguous()
