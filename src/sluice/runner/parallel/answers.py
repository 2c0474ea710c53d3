"""Answers of a rank to the leader, in the order of the steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Protocol

from sluice.runner.parallel.control import FollowerLink
from sluice.runner.parallel.frames import Answer, encode
from sluice.storage.copies import Launched

Micros = tuple[int, ...]
"""What this stage computed of a step, if that is known: `BatchResult.stage_micros`."""


class Answers(Protocol):
    """Sends what becomes of steps."""

    def send(self, step: Launched, micros: Micros) -> None:
        """Answer a step that was started. Raises what made it fail, if that is known."""
        ...

    def close(self) -> None:
        """Send what is left to answer. May be called again."""
        ...


class AnswersAtOnce:
    """Where a step is computed when it was started, as on a CPU."""

    def __init__(self, link: FollowerLink) -> None:
        self._link = link

    def send(self, step: Launched, micros: Micros) -> None:
        self._link.send(encode(Answer(replace(step.wait(), stage_micros=micros))))

    def close(self) -> None:
        """Return: all is sent."""


class AnswersWhenDone:
    """Where a device computes: a thread waits for its steps, so that the next one is started meanwhile.

    Args:
        failed: called, from the thread, with the error of a step, which no answer follows.
    """

    def __init__(self, link: FollowerLink, failed: Callable[[Exception], None]) -> None:
        self._answers = AnswersAtOnce(link)
        self._failed = failed
        self._steps: SimpleQueue[tuple[Launched, Micros] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._wait_for_steps, name="answers", daemon=True)
        self._thread.start()

    def send(self, step: Launched, micros: Micros) -> None:
        self._steps.put((step, micros))

    def close(self) -> None:
        self._steps.put(None)
        self._thread.join()

    def _wait_for_steps(self) -> None:
        while (entry := self._steps.get()) is not None:
            try:
                self._answers.send(*entry)
            except Exception as error:  # noqa: BLE001 - the runner raises it
                self._failed(error)
                return
