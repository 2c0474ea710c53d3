"""Loads the compiled CPU kernels with ctypes and runs them on a pool of threads.

The library is compiled when Sluice is installed, for all levels of x86-64. The level is chosen when a model is loaded.
Without a compiler there is no library, and torch computes instead.
"""

from __future__ import annotations

import ctypes
import shlex
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from sluice.kernels.cpu.abi import (
    VERSION,
    AttentionCall,
    CausalConvCall,
    EmbedRowsCall,
    ExpertsCall,
    GatedNormCall,
    GroupedLinearCall,
    ListedCall,
    LoraCall,
    MaskCall,
    NormCall,
    Operation,
    PackBlocksCall,
    PackedLinearCall,
    PageBoundsCall,
    RecurrenceCall,
    RotateStoreCall,
    RouteCall,
    SiluMulCall,
)
from sluice.kernels.cpu.sources import digest_of
from sluice.version import DISTRIBUTION

FOLDER = Path(__file__).parent
FILE = "_kernels.so"
"""The library, for every version of Python."""
MAX_HEAD_DIM = 512


class Level(IntEnum):
    """Instruction sets that the kernels are written for, with the numbers of `cpu.h`. A higher level is faster."""

    SCALAR = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_VNNI = 3
    AVX512_BF16 = 4
    AMX = 5
    SCALAR_TILES = 6
    """Plain C++, with AMX's tiles emulated in memory, for tests."""
    AVX512_TILES = 7
    """AVX-512, with AMX's tiles emulated in memory, for tests."""


NAMES: Mapping[str, Level] = {
    "scalar": Level.SCALAR,
    "avx2": Level.AVX2,
    "avx512": Level.AVX512,
    "avx512-vnni": Level.AVX512_VNNI,
    "avx512-bf16": Level.AVX512_BF16,
    "amx": Level.AMX,
}
"""Levels by the names of `--cpu-kernels`, without those for tests."""


class KernelsUnavailable(RuntimeError):
    """The kernels cannot run on this machine; the message says why."""


class Library:
    """The compiled library.

    Raises:
        KernelsUnavailable: it was not compiled, cannot be loaded, or was compiled from another version of Sluice.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        path = folder / FILE
        if not path.exists():
            raise KernelsUnavailable("they were not compiled when Sluice was installed: there was no C++ compiler")
        try:
            self.functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelsUnavailable(f"{FILE} cannot be loaded: {error}") from error
        version = self.functions.sluice_abi_version() if hasattr(self.functions, "sluice_abi_version") else 0
        if version != VERSION:
            raise KernelsUnavailable(
                f"{FILE} is of another version of Sluice ({version}, not {VERSION}): install it again"
            )
        self.functions.sluice_sources.restype = ctypes.c_char_p
        self.functions.sluice_engine_new.restype = ctypes.c_void_p
        self.functions.sluice_engine_free.argtypes = [ctypes.c_void_p]
        self.functions.sluice_all.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        packing: list[type[ctypes._SimpleCData[Any]]]
        packing = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self.functions.sluice_pack_linear.argtypes = packing
        self.functions.sluice_pack_int4.argtypes = packing
        self.functions.sluice_pack_int8.argtypes = [*packing, ctypes.c_void_p]
        self.functions.sluice_take_grids.argtypes = [ctypes.c_void_p]
        self.functions.sluice_packed_bytes.argtypes = [ctypes.c_int, ctypes.c_int64]
        self.functions.sluice_packed_bytes.restype = ctypes.c_int64
        self.functions.sluice_crc32c.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        self.functions.sluice_crc32c.restype = ctypes.c_uint32

    def why_outdated(self) -> str | None:
        """Return a sentence for the user if the library was compiled from other sources than those beside it, with the
        command that compiles it again. None if it was not, or if there are no sources."""
        sources = digest_of(self._folder)
        if not sources or sources == self.functions.sluice_sources().decode():
            return None
        project = self._folder.parents[2]
        is_checkout = (project / "setup.py").is_file()
        what = ["-e", str(project)] if is_checkout else ["--force-reinstall", "--no-deps", DISTRIBUTION]
        command = shlex.join([sys.executable, "-m", "pip", "install", *what])
        return f"the compiled kernels were built from other sources than those beside them; build them again: {command}"

    def has(self, level: Level) -> bool:
        """Return whether the processor and the operating system support a level."""
        return bool(self.functions.sluice_has_level(int(level)))

    def levels(self) -> Sequence[Level]:
        """Return all supported levels, including those for tests."""
        return [level for level in Level if self.has(level)]

    def best(self) -> Level:
        """Return the fastest supported level.

        Raises:
            KernelsUnavailable: only the scalar level is supported, and torch is faster than that.
        """
        usable = [level for level in NAMES.values() if level != Level.SCALAR and self.has(level)]
        if not usable:
            raise KernelsUnavailable("this processor has no AVX2")
        return max(usable)


Call = (
    AttentionCall
    | NormCall
    | RotateStoreCall
    | SiluMulCall
    | PackedLinearCall
    | GroupedLinearCall
    | EmbedRowsCall
    | LoraCall
    | ExpertsCall
    | RouteCall
    | CausalConvCall
    | RecurrenceCall
    | GatedNormCall
)
Listener = Callable[[Operation, Call], None]


class CallList:
    """A list of calls that run one after the other.

    Args:
        calls: owned by the list. The caller must keep alive what they point to.
    """

    def __init__(self, calls: Sequence[tuple[Operation, Call]]) -> None:
        self._calls = calls
        self.array = (ListedCall * len(calls))(
            *(ListedCall(operation, ctypes.addressof(call)) for operation, call in calls)
        )


class Kernels:
    """The kernels of one level, and the threads that they run on. One call runs at a time; others wait.

    Args:
        threads: threads that compute, including the caller's.

    Raises:
        KernelsUnavailable: the level is not supported, or the threads cannot be started.
        ValueError: `threads` is below 1.
    """

    def __init__(self, library: Library, level: Level, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if not library.has(level):
            raise KernelsUnavailable(f"this processor has no {level.name.lower().replace('_', '-')}")
        self.level = level
        self.threads = threads
        self._functions = library.functions
        self._engine = ctypes.c_void_p(library.functions.sluice_engine_new(int(level), threads))
        if not self._engine:
            raise KernelsUnavailable(f"the system refused to start {threads - 1} threads")
        weakref.finalize(self, library.functions.sluice_engine_free, self._engine)
        self._listener: Listener | None = None

    @contextmanager
    def reporting_to(self, listener: Listener) -> Iterator[None]:
        """Call a listener after each call, within the `with`. There can be only one at a time."""
        assert self._listener is None, "there is another listener"
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    @property
    def are_reported(self) -> bool:
        """Whether calls are reported to a listener, which may repeat them later."""
        return self._listener is not None

    def run_all(self, calls: CallList) -> None:
        """Run calls one after the other."""
        self._functions.sluice_all(self._engine, calls.array, len(calls.array))

    def attention(self, call: AttentionCall) -> None:
        """Compute the attention of a batch over pages."""
        self._functions.sluice_attention(self._engine, ctypes.byref(call))
        self._report(Operation.ATTENTION, call)

    def norm(self, call: NormCall) -> None:
        """Compute the norm of rows, after an addition if the call has a delta."""
        self._functions.sluice_norm(self._engine, ctypes.byref(call))
        self._report(Operation.NORM, call)

    def rotate_store(self, call: RotateStoreCall) -> None:
        """Norm the heads, rotate them, and store keys and values."""
        self._functions.sluice_rotate_store(self._engine, ctypes.byref(call))
        self._report(Operation.ROTATE_STORE, call)

    def silu_mul(self, call: SiluMulCall) -> None:
        """Compute `silu(gate) * up`."""
        self._functions.sluice_silu_mul(self._engine, ctypes.byref(call))
        self._report(Operation.SILU_MUL, call)

    def mask_rows(self, call: MaskCall) -> None:
        """Exclude tokens from rows of logits."""
        self._functions.sluice_mask_rows(self._engine, ctypes.byref(call))

    def bound_pages(self, call: PageBoundsCall) -> None:
        """Compute the largest products that queries can have with the keys of pages."""
        self._functions.sluice_bound_pages(self._engine, ctypes.byref(call))

    def pack_linear(self, weight: int, out_features: int, in_features: int, packed: int) -> None:
        """Pack a bfloat16 weight [out_features, in_features] for `packed_linear`.

        Args:
            weight: its address.
            in_features: an even number.
            packed: address of the result, with `out_features` rounded up to whole blocks of 32. It may be `weight` if
                nothing is rounded.
        """
        self._functions.sluice_pack_linear(weight, out_features, in_features, packed)

    def pack_int8(self, weight: int, out_features: int, in_features: int, packed: int, sums: int) -> None:
        """Pack an int8 weight [out_features, in_features] for `packed_linear`, as `pack_linear`.

        Args:
            in_features: a multiple of 4.
            sums: address of [out_features] int32, which receives the sums over the inputs.
        """
        self._functions.sluice_pack_int8(weight, out_features, in_features, packed, sums)

    def pack_int4(self, weight: int, out_features: int, in_features: int, packed: int) -> None:
        """Pack a weight of four bits [out_features, in_features / 2] for `packed_linear`, as `pack_linear`.

        Args:
            in_features: a multiple of 4. The value of an even input is in the lower half of its byte.
        """
        self._functions.sluice_pack_int4(weight, out_features, in_features, packed)

    def packed_linear(self, call: PackedLinearCall) -> None:
        """Compute a product with a packed weight, then its activation or gate."""
        self._functions.sluice_packed_linear(self._engine, ctypes.byref(call))
        self._report(Operation.PACKED_LINEAR, call)

    def packed_bytes(self, kind: int, in_features: int) -> int:
        """Return the bytes of 32 outputs that `pack_blocks` packs.

        Args:
            kind: a `StoredType` of `abi.h`.
        """
        return int(self._functions.sluice_packed_bytes(kind, in_features))

    def take_grids(self, grids: int) -> None:
        """Take the grids of the types that have one, which `pack_blocks` and `embed_rows` need first.

        Args:
            grids: their address, in the form of `Grids` in `rare_blocks.h`. They are copied once for all levels.
        """
        self._functions.sluice_take_grids(grids)

    def pack_blocks(self, call: PackBlocksCall) -> None:
        """Pack the blocks of a GGUF file for `grouped_linear`, on all threads."""
        self._functions.sluice_pack_blocks(self._engine, ctypes.byref(call))

    def grouped_linear(self, call: GroupedLinearCall) -> None:
        """Compute a product with weights in groups, then its activation or gate."""
        self._functions.sluice_grouped_linear(self._engine, ctypes.byref(call))
        self._report(Operation.GROUPED_LINEAR, call)

    def route(self, call: RouteCall) -> None:
        """Choose the experts of rows."""
        self._functions.sluice_route(self._engine, ctypes.byref(call))
        self._report(Operation.ROUTE, call)

    def experts(self, call: ExpertsCall) -> None:
        """Compute the experts that rows chose, and their sums."""
        self._functions.sluice_experts(self._engine, ctypes.byref(call))
        self._report(Operation.EXPERTS, call)

    def embed_rows(self, call: EmbedRowsCall) -> None:
        """Look up rows of an embedding that stays as it is stored."""
        self._functions.sluice_embed_rows(self._engine, ctypes.byref(call))
        self._report(Operation.EMBED_ROWS, call)

    def lora(self, call: LoraCall) -> None:
        """Add to a layer's outputs what the adapters of its rows give, then join both halves of a gated layer."""
        self._functions.sluice_lora(self._engine, ctypes.byref(call))
        self._report(Operation.LORA, call)

    def causal_conv(self, call: CausalConvCall) -> None:
        """Compute the convolution over the last tokens, and keep the columns that later calls need."""
        self._functions.sluice_causal_conv(self._engine, ctypes.byref(call))
        self._report(Operation.CAUSAL_CONV, call)

    def recurrence(self, call: RecurrenceCall) -> None:
        """Compute a recurrence over all earlier tokens, and update its states."""
        self._functions.sluice_recurrence(self._engine, ctypes.byref(call))
        self._report(Operation.RECURRENCE, call)

    def gated_norm(self, call: GatedNormCall) -> None:
        """Compute the norms of groups, times the activation of a gate."""
        self._functions.sluice_gated_norm(self._engine, ctypes.byref(call))
        self._report(Operation.GATED_NORM, call)

    def _report(self, operation: Operation, call: Call) -> None:
        if self._listener is not None:
            self._listener(operation, call)
