"""Captured forwards on a CPU: a replay makes the calls of the compiled kernels again, without the Python around them.

    operations of torch        kept with their very tensors, and repeated into these
    calls of the kernels       kept in a list, which the library runs through
    views, allocations         need no replay

What the work allocates comes from an arena, where a tensor's memory serves another as soon as the first is freed. That
holds in a replay as in the capture, because both do the same in the same order. Captures share the arena, since only
one runs at a time.
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
from sluice.kernels.cpu.abi import Operation
from sluice.kernels.cpu.library import Call, CallList, Kernels
from sluice.runner.device_state import DeviceState
from sluice.runner.forwards import Forwards, Model
from sluice.runner.graphs import Captured, DecodeGraphs

ALIGNMENT = 64
"""Bytes."""
EMPTY = torch.ops.aten.empty.memory_format
READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")
"""Operations whose result Python reads: what it does with it cannot be captured."""

SIZES = (*range(1, 17), 20, 24, 28, 32)
"""Numbers of rows of captured steps. With more rows Python's share of a step is small. Up to 16 none is padded."""

Replay = Callable[[], None]


class CaptureError(RuntimeError):
    """The work cannot be captured."""


class Arena:
    """Memory that tensors borrow, and that others borrow once these are freed."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor. It has its memory alone until it and all views of it are freed."""
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
        """Return the memory as a buffer, which tensors keep alive."""
        buffer = (ctypes.c_char * size).from_address(self._memory.data_ptr())
        self._lent = weakref.ref(buffer)
        return buffer


class KernelCapture:
    """A `graphs.Capture` over the kernels.

    Args:
        kernels: their calls are captured; no others may be made at the same time.
        busy: called before every layer of a replay.
    """

    def __init__(self, kernels: Kernels, busy: Callable[[], None] = noop) -> None:
        self._kernels = kernels
        self._busy = busy
        self._arena = Arena()

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        """Capture `work`.

        Raises:
            CaptureError: the work reads tensors in Python.
        """
        tape = _Tape(self._kernels, self._arena)
        with self._kernels.reporting_to(tape.record), tape:
            output = work()
        return Captured(output, _Program(tape.replays(), self._arena, self._busy).replay)


class _Program:
    """Captured work.

    Args:
        arena: kept alive, as the calls point into its memory.
        busy: called before every part.
    """

    def __init__(self, replays: Sequence[Replay], arena: Arena, busy: Callable[[], None]) -> None:
        self._replays = replays
        self._arena = arena
        self._busy = busy

    @torch.inference_mode()
    def replay(self) -> None:
        """Repeat the work."""
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
    *,
    with_adapters: bool = False,
) -> DecodeGraphs:
    """Return forwards that capture steps of a few decodes when they first occur, and replay them.

    Args:
        eager: runs the other steps.
        state: its shape has a scratch page.
        busy: called before every layer of a replay.
        with_adapters: the model has some.
    """
    return DecodeGraphs(
        eager,
        model,
        state,
        attention,
        KernelCapture(kernels, busy),
        tuple(size for size in SIZES if size <= state.shape.num_slots),
        on_demand=True,
        with_adapters=with_adapters,
    )


class _Tape(TorchDispatchMode):
    """Records operations in order."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and to keep torch's compiler off a mode means to import it, which
        takes a second of the first request."""
        return False

    def __init__(self, kernels: Kernels, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels
        self._arena = arena
        self._done: list[list[tuple[Operation, Call]] | Replay] = []

    def record(self, operation: Operation, call: Call) -> None:
        """Record a call of the kernels. Callers reuse their structures, so it is copied."""
        last = self._done[-1] if self._done else None
        if not isinstance(last, list) or last[-1][0] is Operation.ATTENTION:  # a list for each layer
            last = []
            self._done.append(last)
        last.append((operation, type(call).from_buffer_copy(call)))

    def replays(self) -> Sequence[Replay]:
        """Return what to call, in order, to repeat the work."""
        return [self._replay_of(done) if isinstance(done, list) else done for done in self._done]

    def _replay_of(self, calls: list[tuple[Operation, Call]]) -> Replay:
        listed = CallList(calls)
        return lambda: self._kernels.run_all(listed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in READS:
            raise CaptureError(f"{name} reads a value on the host, so it cannot be captured")
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
    """Return whether an allocation is of strided memory on the CPU."""
    device, layout = kwargs.get("device"), kwargs.get("layout")
    is_here = device is None or torch.device(device).type == "cpu"
    return is_here and layout in (None, torch.strided) and kwargs.get("memory_format") is None


def _are_views(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> bool:
    """Return whether all results are in the memory of arguments, so that nothing was computed."""
    memory = {argument.untyped_storage().data_ptr() for argument in arguments}
    return all(result.untyped_storage().data_ptr() in memory for result in results)


def _tensors(given: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, or in nested lists and tuples of values."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for item in given for tensor in _tensors(item)] if isinstance(given, list | tuple) else []
