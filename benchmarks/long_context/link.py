"""A link to an engine in this process that keeps what was sent, and when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from sluice.engine.messages import Message, Stats
from sluice.types import Output


class TimedLink:
    """Keeps when each token came."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.times: dict[int, list[float]] = {}
        self.ended: dict[int, str | None] = {}
        self._inbox: deque[Message] = deque()

    def put(self, message: Message) -> None:
        self._inbox.append(message)

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        """What was put; a loop that has nothing to do waits a little for copies."""
        if block and not self._inbox:
            time.sleep(min(0.001, timeout or 0.001))
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def post(self, message: Message) -> None:
        self._inbox.append(message)

    def send(self, outputs: Sequence[Output]) -> None:
        now = time.perf_counter()
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.times.setdefault(output.request_id, []).extend([now] * len(output.token_ids))
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.error

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"nobody asked for {stats}")
