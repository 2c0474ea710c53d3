"""Processor seconds of tests with those of their child processes, by folder and for the most expensive functions.

    PYTHONPATH=scripts .venv/bin/python -m pytest -q -p test_seconds -p no:xdist -m "not slow" tests/parity

A child process counts for the test that waits for its end. One that is killed by a process that does not wait for it is
not counted.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

import pytest

MOST = 25
"""Functions that are shown."""


class Seconds:
    """Adds up the seconds of each test function, and of the collection."""

    def __init__(self) -> None:
        self.of = Counter[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = now()
        try:
            return (yield)
        finally:
            self.of[item.nodeid.partition("[")[0]] += now() - before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Iterator[None]:
        before = now()
        try:
            return (yield)
        finally:
            self.of["collection"] += now() - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders = Counter[str]()
        for name, seconds in self.of.items():
            folders["/".join(PurePath(name.partition("::")[0]).parts[:2])] += seconds
        for title, counted in (("folder", folders), ("function", self.of)):
            terminalreporter.section(f"processor seconds by {title}: {counted.total():.1f}")
            for name, seconds in counted.most_common(MOST):
                terminalreporter.line(f"{seconds:8.2f}  {name}")


def now() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds(), "processor-seconds")
