"""Threads that compute masks while the device runs a step.

A task is short, some ten microseconds, and holds no lock of the interpreter for most of it. Rows whose grammar is slow
have a thread of their own, of a lower priority. The first slow mask of a row is computed among the others: the thread
that it keeps is then replaced (`relieve`), so that they do not wait behind it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from sluice.runner.grammar.compiler import be_nicer

Task = Callable[[], None]
"""Raises nothing."""
MAX_RETIRING = 32
"""Threads that were replaced and have not ended, after which none is replaced."""


class MaskWorkers:
    """Runs tasks on threads, which begin with the first task.

    Args:
        num_threads: for ordinary tasks; None: one for every four processors, from 1 to 4.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or min(4, max(1, (os.cpu_count() or 1) // 4))
        self._ordinary: SimpleQueue[Task | None] = SimpleQueue()
        self._slow: SimpleQueue[Task | None] = SimpleQueue()
        self._workers: list[Worker] = []
        """Workers for ordinary tasks."""
        self._retiring: list[Worker] = []

    def run(self, task: Task, *, is_slow: bool = False) -> None:
        """Let a thread run a task, after those before it of its kind."""
        if not self._workers:
            self._workers = [Worker(self._ordinary) for _ in range(self._num_threads)]
            Worker(self._slow, is_slow=True)
        (self._slow if is_slow else self._ordinary).put(task)

    def relieve(self, seconds: float) -> None:
        """Replace the threads that have been busy with one ordinary task for so long. They end with it."""
        now = time.monotonic()
        self._retiring = [worker for worker in self._retiring if worker.is_alive()]
        for index, worker in enumerate(self._workers):
            if len(self._retiring) < MAX_RETIRING and worker.busy_since < now - seconds:
                worker.retires = True
                self._retiring.append(worker)
                self._workers[index] = Worker(self._ordinary)

    def close(self) -> None:
        """End the threads, when they have done what they were given. Does not wait."""
        for _ in self._workers:
            self._ordinary.put(None)
        if self._workers:
            self._slow.put(None)
        self._workers = []


IDLE = float("inf")


class Worker:
    """One thread, which runs the tasks of a queue."""

    def __init__(self, tasks: SimpleQueue[Task | None], *, is_slow: bool = False) -> None:
        self._tasks = tasks
        self._is_slow = is_slow
        self.busy_since = IDLE
        """When its task began, in seconds of `time.monotonic`."""
        self.retires = False
        """It ends with its present task."""
        self._thread = threading.Thread(target=self._work, name="masks", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        if self._is_slow:
            be_nicer()
        while not self.retires and (task := self._tasks.get()) is not None:
            self.busy_since = time.monotonic()
            task()
            self.busy_since = IDLE
            del task  # it keeps its row, and the next one may be long in coming
