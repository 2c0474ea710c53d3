"""How large the KV pool may be, and how many bytes tensors take.

A pool size that the user gave is used as it is, or refused if it does not fit. Otherwise the pool takes what `Room`
leaves for it once the model is loaded, and never more than `max_running_requests` requests of full length can fill.

A CPU's memory is shared with the rest of the machine, and its pool is only committed as it fills, so the pool takes a
share of it. A GPU serves the engine alone: the pool takes all of it but what the largest step was seen to take, CUDA
graphs and a reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from sluice.attention.base import PagedKV
from sluice.config import ConfigError, MemoryShortage

CPU_SHARE = 0.5
"""Share of free memory that a pool takes on a CPU if the user gave no size."""
RESERVED_SHARE = 0.03
"""Share of a GPU's memory that stays free: for fragments between what the allocator hands out."""
RESERVED_BYTES = 512 << 20
"""Least memory that stays free."""

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """The pages of layers with a window that are to be beside those of the others."""

    page_bytes: int
    reserve: int
    """Pages that running requests need at once, at most."""
    share: int
    """Others for each page beside these, which keeps what others may find again."""

    def pages_beside(self, pages: int) -> int:
        """Return how many there are to be beside so many others. Each is of tokens that have one of the others."""
        return min(pages, self.reserve + pages // self.share)

    def others_in(self, num_bytes: int, page_bytes: int) -> int:
        """Return how many of the others there can be, of `page_bytes` each, in so much memory."""
        if num_bytes < 0:
            return 0
        at_least = num_bytes // (page_bytes + self.page_bytes)
        left = self.share * (num_bytes - self.reserve * self.page_bytes)
        return max(at_least, left // (self.share * page_bytes + self.page_bytes))


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What a KV pool is for."""

    page_size: int
    bytes_per_token: int
    """Keys and values of all layers, or of those without a window."""
    max_model_len: int
    max_running_requests: int
    max_total_tokens: int | None
    """The size that the user gave, or None."""
    window: WindowRequest | None = None
    """Pages of layers with a window; None: they are in `bytes_per_token`."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        return self.page_size * self.bytes_per_token + (0 if self.window is None else self.window.page_bytes)

    def bytes_of(self, pages: int) -> int:
        """Return the bytes of so many pages, with those of layers with a window."""
        own = pages * self.page_size * self.bytes_per_token
        return own if self.window is None else own + self.window.pages_beside(pages) * self.window.page_bytes

    def pages_in(self, num_bytes: int) -> int:
        """Return how many pages there can be in so much memory, with those of layers with a window."""
        if self.window is None:
            return num_bytes // self.page_bytes
        return self.window.others_in(num_bytes, self.page_size * self.bytes_per_token)

    @property
    def useful_pages(self) -> int:
        """Pages that can be in use at once, at most."""
        return self.max_running_requests * -(-self.max_model_len // self.page_size)


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool may take on a device."""

    open_bytes: int
    """Bytes if the user gave no size."""
    most_bytes: int
    """Bytes if the user gave a size."""
    reason: str
    """Where these come from, for messages."""
    device_type: str


def cpu_room(free_bytes: int) -> Room:
    """Return what a pool may take on a CPU.

    Args:
        free_bytes: memory free once the model is loaded.
    """
    reason = f"of the {_gib(free_bytes)} GiB free on cpu {CPU_SHARE:.0%} may be used"
    return Room(int(free_bytes * CPU_SHARE), free_bytes, reason, "cpu")


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """A GPU's memory once the model is loaded, in bytes."""

    total: int
    free: int
    step: int
    """Bytes that the largest step takes beside weights and KV."""
    graphs: int
    """Bytes that CUDA graphs will take."""


def cuda_room(memory: CudaMemory, fraction: float | None, utilization: float | None = None) -> Room:
    """Return what a pool may take on a GPU. Without a share, it is all but what a step, graphs and the reserve need.

    Args:
        fraction: `--mem-fraction-static`: share of all memory that weights, KV and everything else already there may
            take together.
        utilization: `--gpu-memory-utilization`: the share that these, a step and graphs may take together.

    Raises:
        MemoryShortage: the fraction leaves too little for a step.
    """
    left = memory.free - memory.step - memory.graphs
    needs = f"a step takes up to {_gib(memory.step)} GiB and CUDA graphs {_gib(memory.graphs)} GiB"
    free = f"of {_gib(memory.total)} GiB on cuda {_gib(memory.free)} GiB are free, {needs}"
    if utilization is not None:
        used = memory.total - memory.free
        wanted = int(utilization * memory.total) - used - memory.step - memory.graphs
        return Room(
            max(0, min(wanted, left)),
            max(0, left),
            f"{free}; --gpu-memory-utilization {utilization} is the limit",
            "cuda",
        )
    if fraction is None:
        reserve = max(RESERVED_BYTES, int(memory.total * RESERVED_SHARE))
        reason = f"{free}, and {_gib(reserve)} GiB are left alone"
        return Room(max(0, left - reserve), max(0, left), reason, "cuda")
    used = memory.total - memory.free
    wanted = int(fraction * memory.total) - used
    if wanted > left:
        raise MemoryShortage(
            f"--mem-fraction-static {fraction} leaves too little: {free}; at most"
            f" {_floor2((used + max(0, left)) / memory.total)} fits, or lower --chunked-prefill-size or"
            f" --max-running-requests"
        )
    reason = (
        f"--mem-fraction-static {fraction} of {_gib(memory.total)} GiB, {_gib(used)} GiB of them in use, is the limit"
    )
    return Room(max(0, wanted), max(0, left), reason, "cuda")


def pool_pages(request: PoolRequest, room: Room) -> int:
    """Return the number of pages, at least 1. A size that the user gave is rounded down to whole pages.

    Raises:
        MemoryShortage: the size that the user gave does not fit, or not even one page fits.
        ConfigError: the size that the user gave is below one page.
    """
    if request.max_total_tokens is None:
        pages = min(request.useful_pages, request.pages_in(room.open_bytes))
        if pages < 1:
            raise MemoryShortage(
                f"no room for the KV pool: one page of {request.page_size} tokens takes {request.page_bytes} bytes,"
                f" and {room.reason}; free some memory, or set a smaller --page-size or an explicit --max-total-tokens"
            )
        return pages
    pages = request.max_total_tokens // request.page_size
    if pages < 1:
        raise ConfigError(
            f"--max-total-tokens must be at least one page, got {request.max_total_tokens}"
            f" with --page-size {request.page_size}"
        )
    if request.bytes_of(pages) > room.most_bytes:
        fits = request.pages_in(room.most_bytes) * request.page_size
        raise MemoryShortage(
            f"--max-total-tokens {request.max_total_tokens} takes {_gib(request.bytes_of(pages))} GiB of KV, but"
            f" only {_gib(room.most_bytes)} GiB are free for it on {room.device_type}; at most {fits} tokens fit"
        )
    return pages


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory behind tensors. Views of one storage count once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:  # packed by a library that does not show its memory
            sizes[id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def module_bytes(*modules: nn.Module) -> int:
    """Return the bytes of all tensors that modules and their parts hold: weights as they were packed, and buffers. What
    they share counts once."""
    return tensor_bytes(tensor for module in modules for tensor in _held(module))


def kv_bytes(kv: Iterable[PagedKV]) -> int:
    """Return the bytes of the pages of some layers."""
    return tensor_bytes(tensor for layer in kv for tensor in (layer.k, layer.v))


def _held(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        yield from part.parameters(recurse=False)
        yield from part.buffers(recurse=False)
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"


def _floor2(share: float) -> float:
    return math.floor(share * 100) / 100
