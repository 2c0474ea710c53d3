"""A link with which a test can hold an engine: it steps only when a message arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.engine.messages import Message, Stats
from sluice.process.zmq_link import ZmqLink
from sluice.types import Output


@dataclass
class HeldLink:
    """The engine's end of the connection. While it is held, the engine makes one step for each arrival of messages, so
    no request ends before a slow test has looked."""

    inner: ZmqLink
    is_held: bool = False
    """Set by another thread. To release an engine that waits, a message must follow."""

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        return self.inner.receive(block=block or self.is_held, timeout=timeout)

    def post(self, message: Message) -> None:
        self.inner.post(message)

    def send(self, outputs: Sequence[Output]) -> None:
        self.inner.send(outputs)

    def answer(self, stats: Stats) -> None:
        self.inner.answer(stats)
