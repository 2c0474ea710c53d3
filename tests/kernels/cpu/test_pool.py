"""The pool of threads, tested through an operation that they share."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels, KernelsUnavailable, Level, Library
from sluice.models.native_ops import NativeOps
from sluice.models.ops import Norm

LIBRARY = library()
NORM = Norm(torch.ones(512), 1e-6)


def rows(seed: int, count: int = 96) -> torch.Tensor:
    return torch.randn(count, 512, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_item_is_done_once(threads: int) -> None:
    """With calls faster than threads fall asleep, a thread that is late for one call must not work on the next."""
    ops, x = NativeOps(Kernels(LIBRARY, Level.SCALAR, threads)), rows(0)
    zero = torch.zeros_like(x)
    expected = x.clone()
    for number in range(1000):
        # In place, so an item that is done twice, or not at all, gives other numbers.
        delta = zero if number % 2 else zero + 1
        x, _ = ops.add_norm(x, delta, NORM)
        expected += delta
        assert torch.equal(x, expected), number


def test_callers_take_turns() -> None:
    """Calls of several threads must not mix."""
    ops = NativeOps(Kernels(LIBRARY, Level.SCALAR, 3))
    inputs = [rows(seed) for seed in range(4)]
    expected = [ops.norm(x, NORM) for x in inputs]
    together = threading.Barrier(len(inputs))

    def work(index: int) -> bool:
        together.wait(timeout=60)
        return all(torch.equal(ops.norm(inputs[index], NORM), expected[index]) for _ in range(100))

    with ThreadPoolExecutor(len(inputs)) as executor:
        assert all(executor.map(work, range(len(inputs))))


def test_threads_end_with_their_kernels() -> None:
    """Otherwise a process that loads one model after another accumulates threads."""

    def running() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    gc.collect()  # kernels of other tests
    before = running()
    kernels = Kernels(LIBRARY, Level.SCALAR, 9)
    own = running() - before  # threads of other tests may end meanwhile
    assert len(own) == 8
    del kernels
    gc.collect()
    assert not own & running()


def test_refuses_no_threads() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Kernels(LIBRARY, Level.SCALAR, 0)


def test_refuses_an_unsupported_level() -> None:
    class Older(Library):
        def has(self, level: Level) -> bool:
            return level != Level.AMX

    with pytest.raises(KernelsUnavailable, match="no amx"):
        Kernels(Older(), Level.AMX, 1)
