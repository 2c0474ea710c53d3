"""The compiled kernels: found beside this file, loaded with ctypes, and run by a pool of threads.

They are compiled when Sluice is installed, for every x86-64 at once; which level runs is decided here, when a model is
loaded. Where there was no compiler there is no library, and everything they do is done by torch instead.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from sluice.native.abi import (
    VERSION,
    AttentionCall,
    ListedCall,
    NormCall,
    Operation,
    PackedLinearCall,
    RotateStoreCall,
    SiluMulCall,
)

FOLDER = Path(__file__).parent
MAX_HEAD_DIM = 512


class Level(IntEnum):
    """What the kernels are written for, with the numbers of `cpu.h`: more is faster."""

    SCALAR = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX = 4
    SCALAR_TILES = 5
    """For tests: AMX's tiles emulated in memory, beside plain C++."""
    AVX512_TILES = 6
    """For tests: the same beside AVX-512."""


NAMES: Mapping[str, Level] = {
    "scalar": Level.SCALAR,
    "avx2": Level.AVX2,
    "avx512": Level.AVX512,
    "avx512-bf16": Level.AVX512_BF16,
    "amx": Level.AMX,
}
"""As `--cpu-kernels` calls them; not those of tests."""


class KernelsUnavailable(RuntimeError):
    """The kernels cannot run here; the message says why."""


class Library:
    """The compiled library.

    Raises:
        KernelsUnavailable: it was not compiled, cannot be loaded, or is of another version of these sources.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        found = [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_kernels{suffix}").exists()]
        if not found:
            raise KernelsUnavailable("they were not compiled when Sluice was installed: there was no C++ compiler")
        try:
            self.functions = ctypes.CDLL(str(found[0]))
        except OSError as error:
            raise KernelsUnavailable(f"{found[0].name} cannot be loaded: {error}") from error
        version = _version(self.functions)
        if version != VERSION:
            raise KernelsUnavailable(
                f"{found[0].name} is of another version of Sluice ({version}, not {VERSION}): install it again"
            )
        self.functions.sluice_engine_new.restype = ctypes.c_void_p
        self.functions.sluice_engine_free.argtypes = [ctypes.c_void_p]
        self.functions.sluice_all.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self.functions.sluice_pack_linear.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def has(self, level: Level) -> bool:
        """Whether this processor and its system can run a level."""
        return bool(self.functions.sluice_has_level(int(level)))

    def levels(self) -> Sequence[Level]:
        """All that can run here, those of tests too."""
        return [level for level in Level if self.has(level)]

    def best(self) -> Level:
        """The fastest that can run here.

        Raises:
            KernelsUnavailable: nothing but the scalar one can, and torch is faster.
        """
        usable = [level for level in NAMES.values() if level != Level.SCALAR and self.has(level)]
        if not usable:
            raise KernelsUnavailable("this processor has no AVX2")
        return max(usable)


def _version(functions: ctypes.CDLL) -> int:
    """The library's own; 0 if it is older than versions are."""
    try:
        return int(functions.sluice_abi_version())
    except AttributeError:
        return 0


Call = AttentionCall | NormCall | RotateStoreCall | SiluMulCall | PackedLinearCall
Listener = Callable[[Operation, Call], None]


class CallList:
    """Calls to be made one after the other. What they point to is the maker's to keep.

    Args:
        calls: kept, and nobody else's from now on.
    """

    def __init__(self, calls: Sequence[tuple[Operation, Call]]) -> None:
        self._calls = calls
        self.array = (ListedCall * len(calls))(
            *(ListedCall(operation, ctypes.addressof(call)) for operation, call in calls)
        )


class Kernels:
    """One level of the library and the threads it runs on. Calls come one at a time; others wait.

    Args:
        threads: how many compute, the caller's own among them.

    Raises:
        KernelsUnavailable: the processor lacks the level, or the system refuses the threads.
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
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Meanwhile every call is told, when it has been made, to one listener at a time."""
        assert self._listener is None, "somebody listens already"
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def make_all(self, calls: CallList) -> None:
        """Make calls one after the other."""
        self._functions.sluice_all(self._engine, calls.array, len(calls.array))

    def attention(self, call: AttentionCall) -> None:
        """Attention of a batch over pages."""
        self._functions.sluice_attention(self._engine, ctypes.byref(call))
        self._tell(Operation.ATTENTION, call)

    def norm(self, call: NormCall) -> None:
        """Root mean square norm of rows, after an addition perhaps."""
        self._functions.sluice_norm(self._engine, ctypes.byref(call))
        self._tell(Operation.NORM, call)

    def rotate_store(self, call: RotateStoreCall) -> None:
        """Norm heads, turn them, store keys and values."""
        self._functions.sluice_rotate_store(self._engine, ctypes.byref(call))
        self._tell(Operation.ROTATE_STORE, call)

    def silu_mul(self, call: SiluMulCall) -> None:
        """The gated activation."""
        self._functions.sluice_silu_mul(self._engine, ctypes.byref(call))
        self._tell(Operation.SILU_MUL, call)

    def pack_linear(self, weight: int, out_features: int, in_features: int, packed: int) -> None:
        """Lay out a bfloat16 weight [out_features, in_features] for `packed_linear`.

        Args:
            weight: address.
            in_features: even.
            packed: address of room for `out_features` in whole blocks of 32; may be `weight` if these fill them.
        """
        self._functions.sluice_pack_linear(weight, out_features, in_features, packed)

    def packed_linear(self, call: PackedLinearCall) -> None:
        """A product with a weight that was laid out, and what is made of it."""
        self._functions.sluice_packed_linear(self._engine, ctypes.byref(call))
        self._tell(Operation.PACKED_LINEAR, call)

    def _tell(self, operation: Operation, call: Call) -> None:
        if self._listener is not None:
            self._listener(operation, call)
