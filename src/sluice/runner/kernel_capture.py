"""A forward on a CPU, captured: what the compiled kernels did of it is done again in one call, without its Python.

    operations of torch        kept with their very tensors, and made again into these
    calls of the kernels       kept in a list, made again one after the other by the library
    views, allocations         nothing is left to do

Memory for what the work allocates comes from an arena. There a tensor's memory serves the next one as soon as the first
is gone, in a replay as in the capture, because both do the same in the same order; captures share it, since only one
runs at a time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.attention.base import Attention
from sluice.device.queues import noop
from sluice.native.abi import Operation
from sluice.native.library import Call, CallList, Kernels
from sluice.runner.device_state import DeviceState
from sluice.runner.forwards import Forwards, Model
from sluice.runner.graphs import Captured, DecodeGraphs

ALIGNMENT = 64
"""Bytes."""
EMPTY = torch.ops.aten.empty.memory_format
READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")
"""Operations whose result Python sees: what it does with it cannot be captured."""

SIZES = (*range(1, 17), 20, 24, 28, 32)
"""Rows of captured steps. With more of them Python's share of a step is small; up to sixteen no row is only padding."""

Replay = Callable[[], None]


class CaptureError(RuntimeError):
    """The work cannot be captured."""


class Arena:
    """Memory that is lent to tensors, and lent again when these are gone."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As `torch.empty`. The memory is nobody else's until this tensor and all views of it are gone."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        needed = count * dtype.itemsize
        free = [block for block in self._blocks if block.is_free and needed <= block.size <= 2 * needed]
        block = min(free, key=lambda block: block.size, default=None)
        if block is None:
            block = _Block(-(-needed // ALIGNMENT) * ALIGNMENT)
            self._blocks.append(block)
        return torch.frombuffer(block.lend(needed), dtype=dtype, count=count).view(shape)


class _Block:
    """One piece of memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = torch.empty(size, dtype=torch.uint8)
        self._lent: weakref.ref[ctypes.Array[ctypes.c_char]] | None = None

    @property
    def is_free(self) -> bool:
        return self._lent is None or self._lent() is None

    def lend(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """The memory as a buffer, which tensors keep alive."""
        buffer = (ctypes.c_char * size).from_address(self._memory.data_ptr())
        self._lent = weakref.ref(buffer)
        return buffer


class KernelCapture:
    """A `graphs.Capture` over the kernels.

    Args:
        kernels: whose calls are captured; other calls of theirs must not come at the same time.
        busy: called before every layer of a replay.
    """

    def __init__(self, kernels: Kernels, busy: Callable[[], None] = noop) -> None:
        self._kernels = kernels
        self._busy = busy
        self._arena = Arena()

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        """See `Capture`.

        Raises:
            CaptureError: the work reads tensors in Python.
        """
        tape = _Tape(self._kernels, self._arena)
        with self._kernels.heard_by(tape.hear), tape:
            output = work()
        return Captured(output, _Program(tape.replays(), self._arena, self._busy).replay)


class _Program:
    """Captured work.

    Args:
        arena: kept, as its memory is in the calls.
        busy: called before every part.
    """

    def __init__(self, replays: Sequence[Replay], arena: Arena, busy: Callable[[], None]) -> None:
        self._replays = replays
        self._arena = arena
        self._busy = busy

    @torch.inference_mode()
    def replay(self) -> None:
        """Do it all again."""
        for again in self._replays:
            self._busy()
            again()


def cpu_graphs(
    eager: Forwards,
    model: Model,
    state: DeviceState,
    attention: Attention,
    kernels: Kernels,
    busy: Callable[[], None],
) -> DecodeGraphs:
    """Forwards that capture steps of a few decodes when they first come, and replay them.

    Args:
        eager: runs the other steps.
        state: its shape has a scratch page.
        busy: called before every layer of a replay.
    """
    return DecodeGraphs(
        eager,
        model,
        state,
        attention,
        KernelCapture(kernels, busy),
        tuple(size for size in SIZES if size <= state.shape.num_slots),
        on_demand=True,
    )


class _Tape(TorchDispatchMode):
    """Notes what is done, in order."""

    def __init__(self, kernels: Kernels, arena: Arena) -> None:
        super().__init__()
        self._kernels = kernels
        self._arena = arena
        self._done: list[list[tuple[Operation, Call]] | Replay] = []

    def hear(self, operation: Operation, call: Call) -> None:
        """A call of the kernels. Callers use their structures again, so it is copied."""
        last = self._done[-1] if self._done else None
        if not isinstance(last, list) or last[-1][0] is Operation.ATTENTION:  # a list for each layer
            last = []
            self._done.append(last)
        last.append((operation, type(call).from_buffer_copy(call)))

    def replays(self) -> Sequence[Replay]:
        """What to call, in order, to do it all again."""
        return [self._replay_of(done) if isinstance(done, list) else done for done in self._done]

    def _replay_of(self, calls: list[tuple[Operation, Call]]) -> Replay:
        listed = CallList(calls)
        return lambda: self._kernels.make_all(listed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in READS:
            raise CaptureError(f"{name} brings a value to Python: what is done with it cannot be captured")
        if func is EMPTY and _is_plain(given):
            return self._arena.empty(args[0], given.get("dtype") or torch.get_default_dtype())
        result = func(*args, **given)
        old = _tensors(result)
        if func._schema.is_mutable or not _are_views(old, _tensors([*args, *given.values()])):
            self._done.append(lambda: _again(func, args, given, old))
        return result


def _again(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], old: Sequence[torch.Tensor]) -> None:
    for before, now in zip(old, _tensors(func(*args, **kwargs)), strict=True):
        if before.data_ptr() != now.data_ptr():
            before.copy_(now)


def _is_plain(kwargs: Mapping[str, Any]) -> bool:
    """An allocation of strided memory on the CPU."""
    device, layout = kwargs.get("device"), kwargs.get("layout")
    is_here = device is None or torch.device(device).type == "cpu"
    return is_here and layout in (None, torch.strided) and kwargs.get("memory_format") is None


def _are_views(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> bool:
    """Whether all results lie in the memory of arguments: then nothing was computed."""
    memory = {argument.untyped_storage().data_ptr() for argument in arguments}
    return all(result.untyped_storage().data_ptr() in memory for result in results)


def _tensors(given: Any) -> list[torch.Tensor]:
    """The tensors in a value, or in a list or tuple of values and of such lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for item in given for tensor in _tensors(item)] if isinstance(given, list | tuple) else []
