"""Counts the memory that torch's operations take, on a device that does not count itself: a CPU."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """While it is entered, storages that operations make are counted until they are freed.

    `peak` is the most bytes at one time. What was there before, and what is made without an operation (a tensor over a
    numpy array), is not counted. Storages of the meta device take nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            self._known.setdefault(storage, 0)
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage not in self._known and storage.device.type != "meta":
                self._count(storage)
        self.peak = max(self.peak, self.now)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._known[storage] = size
        self.now += size
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
