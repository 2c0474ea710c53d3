"""The device's KV pages as bytes, in any layout of an attention backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.attention.base import PagedKV


class DevicePages:
    """KV tensors of all layers, a page of which is a list of *parts*: keys and values of each layer, in order.

    Args:
        kv: one for each layer, all of the same sizes.
    """

    def __init__(self, kv: Sequence[PagedKV]) -> None:
        self._parts = [_as_bytes(tensor) for layer in kv for tensor in (layer.k, layer.v)]
        sizes = {part.shape for part in self._parts}
        assert len(sizes) == 1, f"pages of different sizes: {sizes}"

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
        the pages."""
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
