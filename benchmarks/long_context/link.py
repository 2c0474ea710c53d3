"""A link to an engine in this process that keeps all outputs and their times."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from contextlib import suppress

from sluice.engine.messages import Message, Stats
from sluice.types import Output


class TimedLink:
    """A link that keeps the time of each token."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.times: dict[int, list[float]] = {}
        self.ended: dict[int, str | None] = {}
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        """Return the messages that have arrived. With `block`, wait 1 ms at most: the caller steps the engine."""
        messages: list[Message] = []
        with suppress(queue.Empty):
            if block:
                messages.append(self._inbox.get(timeout=0.001 if timeout is None else min(0.001, timeout)))
            while True:
                messages.append(self._inbox.get_nowait())
        return messages

    def post(self, message: Message) -> None:
        self._inbox.put(message)

    def send(self, outputs: Sequence[Output]) -> None:
        now = time.perf_counter()
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.times.setdefault(output.request_id, []).extend([now] * len(output.token_ids))
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.error

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"no request for statistics was sent, got {stats}")
