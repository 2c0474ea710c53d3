"""Hypothesis profiles: `ci` repeats the same examples every run and does not shrink, `all` has three times as many
(`make test-all`), `dev` searches and shrinks.

Without an NVIDIA device Triton's kernels are interpreted, which has to be said before anything imports one of them.
"""

import asyncio
import gc
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from slow import ALL_EXAMPLES

ASYNC_PATIENCE = 120.0
"""Seconds after which something that should have happened long ago fails an async test."""
NEVER_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

for name, share in (("ci", 3), ("all", 1)):
    settings.register_profile(
        name,
        max_examples=ALL_EXAMPLES // share,
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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in a loop of its own, and end it if it hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), ASYNC_PATIENCE))
    return True


@pytest.fixture(scope="module", autouse=True)
def _keep_garbage_collection_short() -> Iterator[None]:
    """Exempt also what the tests of a module imported; and what `sluice bench` makes subject to it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: ranks that each wait for threads of their own take several times as long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
