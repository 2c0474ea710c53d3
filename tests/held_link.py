"""An engine that a test can hold: it steps when a message comes, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.engine.messages import Message, Stats
from sluice.process.zmq_link import ZmqLink
from sluice.types import Output


@dataclass
class HeldLink:
    """In front of the engine's end of the line. While it is held, what runs makes one step for each arrival of
    messages, so however slow a loaded machine makes the test, nothing ends before it has looked."""

    inner: ZmqLink
    is_held: bool = False
    """Set by another thread; to let go of an engine that waits, a message must follow."""

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        return self.inner.receive(block=block or self.is_held, timeout=timeout)

    def post(self, message: Message) -> None:
        self.inner.post(message)

    def send(self, outputs: Sequence[Output]) -> None:
        self.inner.send(outputs)

    def answer(self, stats: Stats) -> None:
        self.inner.answer(stats)
