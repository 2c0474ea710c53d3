"""How many bytes tensors really hold: of storages, each counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from sluice.attention.base import PagedKV


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the memory behind the tensors; views of one storage share it."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:  # packed by a library that does not show its memory
            sizes[id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def module_bytes(module: nn.Module) -> int:
    """Bytes of all tensors that a module and those in it hold: weights as they were packed, and buffers."""
    return tensor_bytes(_held(module))


def kv_bytes(kv: Iterable[PagedKV]) -> int:
    """Bytes of the pages of some layers."""
    return tensor_bytes(tensor for layer in kv for tensor in (layer.k, layer.v))


def _held(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        yield from part.parameters(recurse=False)
        yield from part.buffers(recurse=False)
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))
