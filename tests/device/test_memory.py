"""The size of the KV pool: what is free, whose limit it is, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sluice.config import ConfigError
from sluice.device.machine import free_memory
from sluice.device.memory import CudaMemory, PoolRequest, cpu_room, cuda_room, pool_pages

CPU = torch.device("cpu")
OPEN = PoolRequest(page_size=16, bytes_per_token=100, max_model_len=1000, max_running_requests=4, max_total_tokens=None)
PAGE = 1600


def machine(root: Path, *, free_kib: int, membership: str = "") -> Path:
    """A root folder with the files that tell of memory."""
    write(root, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {free_kib} kB\nHugePages_Total: 0\n")
    write(root, "proc/self/cgroup", membership)
    return root


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_open_size_takes_the_documented_share() -> None:
    assert pool_pages(OPEN, cpu_room(20 * PAGE)) == 10
    assert pool_pages(OPEN, cpu_room(2 * PAGE)) == 1


def test_open_size_is_no_more_than_can_be_used() -> None:
    """Four requests of 1000 tokens take 63 pages each; a machine with more memory gains nothing."""
    assert pool_pages(OPEN, cpu_room(1 << 50)) == 4 * 63


def test_asked_size_is_rounded_down_to_pages() -> None:
    assert pool_pages(replace(OPEN, max_total_tokens=47), cpu_room(100 * PAGE)) == 2
    assert pool_pages(replace(OPEN, max_total_tokens=16 * 100), cpu_room(100 * PAGE)) == 100


@pytest.mark.parametrize(
    ("request_", "free", "parts"),
    [
        (OPEN, 2 * PAGE - 2, ["one page of 16 tokens takes 1600 bytes", "50%", "--max-total-tokens"]),
        (OPEN, 0, ["0.00 GiB free on cpu"]),
        (replace(OPEN, max_total_tokens=15), 1 << 40, ["--max-total-tokens", "got 15", "--page-size 16"]),
        (replace(OPEN, max_total_tokens=32), 2 * PAGE - 1, ["--max-total-tokens 32", "at most 16 tokens fit"]),
        (replace(OPEN, max_total_tokens=1 << 40), 1 << 34, ["GiB of KV", "16.00 GiB are free for it on cpu"]),
    ],
)
def test_what_cannot_be_had_is_refused_with_numbers(request_: PoolRequest, free: int, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        pool_pages(request_, cpu_room(free))
    for part in parts:
        assert part in str(caught.value)


GIB = 1 << 30
GPU = CudaMemory(total=100 * GIB, free=80 * GIB, step=6 * GIB, graphs=GIB)


def test_a_gpu_gives_what_a_step_does_not_need() -> None:
    """3% stay free, or half a GiB of a small one."""
    assert cuda_room(GPU, None).open_bytes == 70 * GIB
    assert cuda_room(GPU, None).most_bytes == 73 * GIB
    small = CudaMemory(total=4 * GIB, free=3 * GIB, step=GIB, graphs=0)
    assert cuda_room(small, None).open_bytes == 2 * GIB - (512 << 20)
    assert cuda_room(replace(small, step=3 * GIB), None).open_bytes == 0


def test_a_fraction_counts_what_is_there_already() -> None:
    """Weights, and what others took, are part of it: two engines with half of a GPU each must fit."""
    assert cuda_room(GPU, 0.75).open_bytes == 55 * GIB
    assert cuda_room(GPU, 0.93).open_bytes == 73 * GIB
    assert cuda_room(GPU, 0.1).open_bytes == 0


def test_a_utilization_counts_steps_too() -> None:
    """vLLM's share is of all that is in use, while SGLang's leaves the rest to steps."""
    assert cuda_room(GPU, None, 0.75).open_bytes == (75 - 20 - 7) * GIB
    assert cuda_room(GPU, None, 1.0).open_bytes == 73 * GIB
    assert cuda_room(GPU, None, 0.2).open_bytes == 0


def test_a_fraction_that_leaves_no_room_for_a_step_is_refused() -> None:
    """The error would come hours later, out of memory in the first full step."""
    with pytest.raises(ConfigError, match=r"--mem-fraction-static 0.95 leaves too little: .* at most 0.93"):
        cuda_room(GPU, 0.95)


@pytest.mark.parametrize(
    ("fraction", "parts"),
    [
        (0.2, ["no room for the KV pool", "--mem-fraction-static 0.2 of 100.00 GiB, 20.00 GiB of them in use"]),
        (None, ["no room for the KV pool", "of 100.00 GiB on cuda 80.00 GiB are free, a step takes up to 79.00 GiB"]),
    ],
)
def test_a_gpu_that_is_too_small_is_refused_with_the_reason(fraction: float | None, parts: list[str]) -> None:
    memory = GPU if fraction else replace(GPU, step=79 * GIB)
    with pytest.raises(ConfigError) as caught:
        pool_pages(OPEN, cuda_room(memory, fraction))
    for part in parts:
        assert part in str(caught.value)


def test_without_limits_the_machine_decides(tmp_path: Path) -> None:
    assert free_memory(CPU, machine(tmp_path, free_kib=1000, membership="0::/\n")) == 1000 * 1024


def test_a_container_limit_is_obeyed(tmp_path: Path) -> None:
    """Keeps out sizing by the host's memory inside a container, which the kernel then kills."""
    machine(tmp_path, free_kib=1 << 20, membership="0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/b/memory.current", "10\n")
    assert free_memory(CPU, tmp_path) == 1 << 30
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "5000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.current", "3000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.stat", "anon 2500\ninactive_file 400\n")
    assert free_memory(CPU, tmp_path) == 2400


def test_a_container_limit_in_the_old_interface(tmp_path: Path) -> None:
    machine(tmp_path, free_kib=1 << 20, membership="9:name=systemd:/\n4:cpu,memory:/jobs/x\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 24\n")
    assert free_memory(CPU, tmp_path) == 6024


def test_an_exceeded_limit_leaves_nothing(tmp_path: Path) -> None:
    machine(tmp_path, free_kib=1 << 20, membership="0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "1000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1200\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", "inactive_file 0\n")
    assert free_memory(CPU, tmp_path) == 0


def test_this_machine_has_memory() -> None:
    assert free_memory(CPU) > 1 << 26


def test_somewhere_without_proc(tmp_path: Path) -> None:
    """On macOS there is no /proc; the machine's whole memory is what is known."""
    assert free_memory(CPU, tmp_path) > 1 << 26
