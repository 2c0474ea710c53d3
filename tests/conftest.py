"""Hypothesis profiles: `ci` repeats the same examples every run and does not shrink; `dev` searches and shrinks.

Without an NVIDIA device Triton's kernels are interpreted, which has to be said before anything imports one of them.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

NEVER_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=NEVER_SLOW,
    print_blob=True,
)
settings.register_profile("dev", deadline=None, suppress_health_check=NEVER_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt what the session keeps for good (tests, modules, torch) from garbage collection.

    A full collection would visit it again each time, and so would every `gc.collect()` of a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: ranks that each wait for threads of their own take several times as long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
