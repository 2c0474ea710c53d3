"""An engine that computes on the processors leaves the server its share of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sluice.process.priority import CPU_ENGINE_NICE

THREADS = """
import json, os, threading
from sluice.process.priority import be_nice

started, release = threading.Barrier(4), threading.Event()
for _ in range(3):
    threading.Thread(target=lambda: (started.wait(), release.wait())).start()
started.wait()
be_nice()
print(json.dumps([os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]))
release.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness is a process's")
def test_every_thread_of_the_engine_yields() -> None:
    """Those that compute are made before: with the main thread alone, steps would still take all processors."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, start_new_session=True
    )
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert json.loads(done.stdout) == [min(before + CPU_ENGINE_NICE, 19)] * 4
