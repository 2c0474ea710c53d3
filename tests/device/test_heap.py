"""Memory of a step is there for the next."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

CODE = """
import resource, sys
from sluice.device.machine import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (48 << 20) for _ in range(2)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults_of_a_second_step(heap: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, heap], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_a_second_step_gets_the_memory_of_the_first() -> None:
    """Without it every page of every block is asked of the system again."""
    assert faults_of_a_second_step("as it is") > 10_000
    assert faults_of_a_second_step("kept") < 1_000
