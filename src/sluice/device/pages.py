"""The device's KV pages as bytes, in any layout of an attention backend."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sluice.attention.base import PagedKV


class DevicePages:
    """KV tensors of all layers, a page of which is a list of *parts*: keys and values of each layer, in order.

    If layers differ in size, their keys and values are several parts each, so that all parts have the same size.

    Args:
        kv: one for each layer that has keys and values.
    """

    def __init__(self, kv: Sequence[PagedKV]) -> None:
        tensors = [_as_bytes(tensor) for layer in kv for tensor in (layer.k, layer.v)]
        size = math.gcd(*(tensor.shape[1] for tensor in tensors))
        self._parts: list[torch.Tensor] = [part for tensor in tensors for part in tensor.split(size, dim=1)]

    @property
    def device(self) -> torch.device:
        return self._parts[0].device

    @property
    def num_pages(self) -> int:
        return self._parts[0].shape[0]

    @property
    def num_parts(self) -> int:
        return len(self._parts)

    @property
    def part_bytes(self) -> int:
        return self._parts[0].shape[1]

    @property
    def page_bytes(self) -> int:
        return self.num_parts * self.part_bytes

    def views(self, page: int, count: int = 1) -> list[memoryview]:
        """Return the memory of each part of `count` pages that follow each other, on a CPU: to write there is to write
        the pages. Of layers that differ in size, only one page at a time is in one piece."""
        return [part[page : page + count].view(-1).numpy().data for part in self._parts]

    def copy_out(self, page: int, into: torch.Tensor) -> None:
        """Copy a page to `into` [parts, part_bytes] uint8. On CUDA the host does not wait if `into` is pinned."""
        for part, target in zip(self._parts, into, strict=True):
            target.copy_(part[page], non_blocking=True)

    def copy_in(self, page: int, source: torch.Tensor) -> None:
        """Copy `source`, as `copy_out` filled it, to a page."""
        for part, given in zip(self._parts, source, strict=True):
            part[page].copy_(given, non_blocking=True)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as [pages, bytes of a page] uint8."""
    return tensor.flatten(1).view(torch.uint8)
