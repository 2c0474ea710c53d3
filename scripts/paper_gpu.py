"""A GPU on paper: Triton compiles for it, with its own assembler, on any machine. Launches do nothing.

Without a device it shows whether kernels compile for an architecture, how often they are compiled, their registers and
shared memory, and the compiler's output. Triton must not interpret in this process.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler.compiler import max_shared_mem

MAX_SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that one program may use, by architecture."""


@dataclass(frozen=True)
class Compiled:
    """A compiled version of a kernel."""

    name: str
    registers: int
    """Registers of a thread."""
    spilled: int
    """Bytes of a thread that were spilled from registers."""
    shared: int
    """Bytes of shared memory."""
    ptx: str = field(repr=False)


class PaperDriver(DriverBase):
    """Replaces Triton's CUDA driver.

    Args:
        arch: 80 for SM80, ...
    """

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self.utils = self
        self.launches = 0

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        raise RuntimeError("there is no device")

    def get_benchmarker(self) -> Any:
        raise RuntimeError("there is no device")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": MAX_SHARED[self._arch] * 1024}

    def load_binary(self, *args: object) -> tuple[object, object, int, int, int]:
        """Return module, function, registers, spills and most threads."""
        return object(), object(), 0, 0, 1024

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        def launch(*args: object) -> None:
            self.launches += 1

        return launch


def use(arch: int) -> PaperDriver:
    """Make Triton compile for a device on paper from here on.

    Raises:
        RuntimeError: Triton interprets in this process.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("Triton interprets here: unset TRITON_INTERPRET")
    driver = PaperDriver(arch)
    max_shared_mem.cache_clear()
    triton.runtime.driver.set_active(driver)
    return driver


def compiled(*kernels: Any) -> list[Compiled]:
    """Return the `triton.jit` functions compiled so far."""
    return [_resources(kernel) for each in kernels for kernel in each.device_caches[0][0].values()]


def _resources(kernel: Any) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        report = subprocess.run(
            [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    return Compiled(
        kernel.name, found["REG"], found["STACK"] + found["LOCAL"], kernel.metadata.shared, kernel.asm["ptx"]
    )
