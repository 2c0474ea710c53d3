"""What this process may use of its machine, and the memory that a step leaves to the next one."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.device.machine import physical_cores, time_quota, usable_cores, usable_processors


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(root: Path, cores: list[tuple[int, int]]) -> Path:
    for processor, (package, core) in enumerate(cores):
        topology = f"sys/devices/system/cpu/cpu{processor}/topology"
        write(root, f"{topology}/physical_package_id", f"{package}\n")
        write(root, f"{topology}/core_id", f"{core}\n")
    return root


def test_two_halves_are_one_core(tmp_path: Path) -> None:
    """Two threads on the halves of one core share its arithmetic: the second only takes the first one's cache."""
    root = machine(tmp_path, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)])
    assert physical_cores(range(8), root) == 4
    assert physical_cores([0, 4], root) == 1
    assert physical_cores([0, 2], root) == 2  # of equal number, in two packages


def test_without_topology_every_processor_counts(tmp_path: Path) -> None:
    assert physical_cores([3, 5], tmp_path) == 2


@pytest.mark.parametrize(
    ("outer", "inner", "quota"),
    [("max 100000", "max 100000", None), ("max 100000", "150000 100000", 1.5), ("200000 100000", "400000 100000", 2.0)],
)
def test_a_container_has_a_share(outer: str, inner: str, quota: float | None, tmp_path: Path) -> None:
    """Keeps out 64 threads on 2 processors' time, all of which stand still for most of every period."""
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", f"{outer}\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", f"{inner}\n")
    assert time_quota(tmp_path) == quota


@pytest.mark.parametrize(("microseconds", "quota"), [("-1", None), ("50000", 0.5)])
def test_a_share_in_the_old_interface(microseconds: str, quota: float | None, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpuacct,cpu:/x\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", f"{microseconds}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    assert time_quota(tmp_path) == quota


def test_somewhere_without_proc(tmp_path: Path) -> None:
    """On macOS."""
    assert time_quota(tmp_path) is None


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= len(usable_processors())


CODE = """
import resource, sys
from sluice.device.machine import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (34 << 20) for _ in range(2)]
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
