"""DraftPages: what a drafter keeps of each position, under the page numbers of the target's KV."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sluice.attention.base import PagedKV
from sluice.attention.spec import KVShape, LayerHeads
from sluice.runner.device_state import KVMaker


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Sizes of what a drafter keeps."""

    layers: tuple[LayerHeads, ...]
    """Heads of each layer that has keys and values."""
    state_size: int
    """Elements of the target's state; 0: it keeps none."""
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of a position: keys and values, the state, and the token's id."""
        elements = 2 * sum(layer.num_kv_heads * layer.head_dim for layer in self.layers) + self.state_size
        return elements * self.dtype.itemsize + torch.int64.itemsize


class DraftPages:
    """Keys and values of a drafter's layers, the target's states, and token ids, by KV slot.

    A page is written as the target's is, and shared with it: what is in it depends on the tokens up to its end alone.
    A page that came from a lower tier was not written here, and guesses from it are bad. So all begins as zeros: what
    was never written must not be NaN, which would spread.

    Args:
        shape: of the target's pages in one layer.
        new_kv: makes the pages of one layer.
    """

    def __init__(self, sizes: DraftSizes, shape: KVShape, new_kv: KVMaker) -> None:
        self.kv: Sequence[PagedKV] = tuple(
            new_kv(replace(shape, num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim, dtype=sizes.dtype))
            for layer in sizes.layers
        )
        for tensor in (each for layer in self.kv for each in (layer.k, layer.v)):
            tensor.set_(zeros(tensor.shape, tensor.dtype, shape.device))  # type: ignore[call-overload]
        slots, device = shape.num_pages * shape.page_size, shape.device
        self.tokens = zeros((slots,), torch.int64, device)
        """[KV slots]"""
        self.states = zeros((slots, sizes.state_size), sizes.dtype, device)
        """[KV slots, state_size]"""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros. The system commits those on a CPU page by page as they are written, which `torch.zeros` does at
    once, and `numpy.zeros` where it takes memory that was freed before."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
